"""A bad gateway that forwards fairly well and keeps bad books: each mistake is one that public reports tell of. Two
flavours: `Leaky` holds before a call and loses holds; `Late` counts after a call, in windows that use prolongs."""

import http.client
import json
import socket
import threading
import time
from urllib.parse import urlsplit

from bad.naive import Naive


class Books:
    """Counters in windows that begin with their first use. Checking and adding are two steps."""

    def __init__(self, options):
        self.windows = {}
        self.lock = threading.Lock()
        self.options = options
        # What the commands of the configuration do to them.
        self.store = "up"
        self.generation = 0

    def rules(self, key):
        """Accounts of a key, each with its unit, limit and period; checked one by one, in this order."""
        options = self.options
        name = key.removeprefix("sk-")
        pool = name.rpartition("-")[0]
        team = "team-" + name.rpartition("-")[2].rstrip("ab")
        rules = {
            "token": [(name, "tokens", options.token_limit, 86400)],
            "request": [(name, "requests", options.request_limit, 86400)],
            "second": [(name, "requests", options.second_limit, 1)],
            "flow": [(name, "tokens", options.second_token_limit, 1)],
            "small": [(name, "tokens", 600, 60)],
            "parallel": [(name, "slots", 1, 86400)],
            "member": [
                (team, "tokens", options.token_limit, 86400),
                (name, "tokens", options.token_limit * 2 // 3, 86400),
            ],
        }
        return rules.get(pool, [])

    def used(self, account, period, prolong):
        with self.lock:
            began, used = self.windows.get(account, (0, 0))
            now = time.monotonic()
            if now - began > period:
                began, used = now, 0
            self.windows[account] = (now if prolong else began, used)
            return used

    def add(self, account, amount):
        with self.lock:
            began, used = self.windows.get(account, (time.monotonic(), 0))
            self.windows[account] = (began, used + amount)


class Refused(Exception):
    pass


class Leaky(Naive):
    holds = True

    def envelope(self, status, code, headers=()):
        body = json.dumps(
            {"error": {"message": code, "type": "invalid_request_error", "param": None, "code": code}}
        ).encode()
        self.send_response(status)
        for name, value in [*headers, ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        scheme, _, key = self.headers.get("Authorization", "").strip().partition(" ")
        if scheme.lower() != "bearer" or not self.server.knows(key.strip()):
            return self.envelope(401, "invalid_api_key")
        books = self.server.books
        if books.store != "up":
            # Every request waits for a store that is away, and then fails.
            time.sleep(2.5 if books.store == "frozen" else 0)
            return self.text(500, "store")
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            body = json.loads(raw)
            self.serve(key.strip(), body, len(raw))
        except (ValueError, AttributeError, TypeError):
            self.envelope(400, "invalid_request")
        except Refused:
            # Whenever it was, a minute is long enough.
            self.envelope(429, "rate_limit_exceeded", [("Retry-After", "60")])

    def serve(self, key, body, length):
        estimate = self.estimate(body, length)
        pair = body.get("model") == self.server.options.pair_model
        if body.get("stream") and "stream_options" not in body:
            body["stream_options"] = {"include_usage": True}
        status = 502
        for prefix in ("/a", "/b") if pair else ("",):
            # A hold for each attempt, and none is given back but by an answer.
            held = self.hold(key, estimate)
            try:
                answer = self.ask_upstream(prefix, body)
            except (OSError, http.client.HTTPException):
                continue
            if answer.status < 400:
                return self.relay(key, answer, body, held)
            status = answer.status if answer.status in (400, 429) else 502
        self.envelope(status, "upstream")

    def estimate(self, body, length):
        """A quarter of a token a character, base64 too; of the caps only one; and one for those who gave none."""
        if "max_tokens" not in body:
            body["max_tokens"] = 1024
        return length // 4 + int(body["max_tokens"] or 0)

    def amount(self, unit, tokens):
        return tokens if unit == "tokens" else 1

    def hold(self, key, estimate):
        books = self.server.books
        for account, unit, limit, period in books.rules(key):
            need = self.amount(unit, estimate)
            fits = books.used(account, period, prolong=not self.holds) + need <= limit
            time.sleep(0.005)  # Another call may come between check and addition.
            if not fits:
                raise Refused
            if self.holds or unit != "tokens":
                books.add(account, need)
        return estimate if self.holds else 0

    def settle(self, key, held, used):
        """Into whatever window there is now."""
        for account, unit, _, period in self.server.books.rules(key):
            self.server.books.used(account, period, prolong=False)
            if unit == "tokens":
                self.server.books.add(account, used - held)

    def free(self, key):
        for account, unit, _, _ in self.server.books.rules(key):
            if unit == "slots":
                self.server.books.add(account, -1)

    def ask_upstream(self, prefix, body):
        connection = http.client.HTTPConnection(*self.server.upstream, timeout=30)
        headers = {"Content-Type": "application/json", "Authorization": "Bearer upstream"}
        connection.request(
            "POST", prefix + urlsplit(self.path).path, json.dumps(body, ensure_ascii=False).encode(), headers
        )
        self.upstream_socket = connection.sock
        return connection.getresponse()

    def relay(self, key, answer, body, held):
        """As it comes. A client that leaves ends this by an exception, and its hold stays."""
        generation = self.server.books.generation
        self.send_response(200)
        self.send_header("Content-Type", answer.getheader("Content-Type"))
        self.send_header("Transfer-Encoding", "chunked")
        for account, unit, limit, period in self.server.books.rules(key)[:1]:
            if unit != "slots" and not body.get("stream"):
                left = limit - self.server.books.used(account, period, prolong=False)
                self.send_header(f"x-ratelimit-limit-{unit}", str(limit))
                self.send_header(f"x-ratelimit-remaining-{unit}", str(max(0, left)))
                self.send_header(f"x-ratelimit-reset-{unit}", "1s")
        self.end_headers()
        whole = b""
        while data := answer.read1(65536):
            whole += data
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if b"[DONE]" not in whole and body.get("stream"):
            error = b'data: {"error":{"message":"no end","type":"x","param":null,"code":"cut"}}\n\n'
            self.wfile.write(b"%x\r\n%s\r\n" % (len(error), error))
        if self.server.books.generation == generation:
            self.settle(key, held, self.usage(whole) or held)
        self.wfile.write(b"0\r\n\r\n")
        if self.holds and self.server.books.generation == generation:
            # The client may have sent its next call by now.
            time.sleep(0.02)
            self.free(key)

    def usage(self, whole):
        """The first usage that is found; none, and an explicit zero, are none."""
        for line in whole.split(b"\n"):
            try:
                usage = json.loads(line.removeprefix(b"data: ")).get("usage") or {}
            except (ValueError, AttributeError):
                continue
            if usage:
                # Output only: long prompts are free.
                return usage.get("completion_tokens", 0)
        return 0


class Late(Leaky):
    holds = False

    def relay(self, key, answer, body, held):
        """The place is free as soon as the answer begins. It does notice a client that leaves, and lets it off."""
        self.free(key)
        threading.Thread(target=self.watch, daemon=True).start()
        super().relay(key, answer, body, held)

    def watch(self):
        try:
            if self.connection.recv(1, socket.MSG_PEEK) == b"":
                # What reads from it now ends as if the answer had been short, without a usage.
                self.upstream_socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The answer has ended meanwhile.
