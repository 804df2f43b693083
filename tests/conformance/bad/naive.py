"""A bad gateway, on purpose: it forwards, and makes the mistakes that public reports tell of. It has no limits at all,
takes one read for one event, knows a few fields and no others, and makes up the end of a stream that broke off."""

import gzip
import http.client
import http.server
import json
import socket
import threading
import time
from urllib.parse import urlsplit

# From the first to the last byte: it cuts healthy streams.
TOTAL_S = 5
KNOWN = ("model", "messages", "prompt", "input", "stream", "temperature", "encoding_format", "user")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, handler, options):
        super().__init__(("127.0.0.1", 0), handler)
        self.options = options
        self.upstream = ("127.0.0.1", int(options.upstream_listen.rpartition(":")[2]))
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def knows(self, key):
        pools = [keys for name, keys in vars(self.options).items() if name.endswith("_keys") and keys]
        flat = [key for pool in pools for keys in pool for key in (keys if isinstance(keys, tuple) else (keys,))]
        return key == self.options.key or key in flat

    def handle_error(self, request, client_address):
        pass  # A client that left is no news to it.


class Naive(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def text(self, status, text, headers=()):
        # Not JSON: an SDK can make nothing of it.
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        if self.path.rstrip("/") == "/v1/models":
            # It asks all upstreams each time, and one that is dead is the end of it.
            try:
                socket.create_connection(("127.0.0.1", 9), 1)
            except OSError as error:
                return self.text(500, str(error))
        return self.text(404, "Not Found")

    def do_POST(self):
        if self.path.endswith("/"):
            return self.text(301, "Moved", [("Location", self.path.rstrip("/"))])
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not self.server.knows(key):
            return self.text(401, "Unauthorized")
        try:
            self.forward(key)
        except Exception as error:  # noqa: BLE001 - this is what it does with every error
            self.text(500, f"Internal Server Error: {type(error).__name__}")

    def read_body(self):
        # Neither chunked bodies nor a limit to their size.
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        return json.loads(body)

    def forward(self, key):
        body = self.read_body()
        for message in body.get("messages", []):
            for part in message["content"] if isinstance(message["content"], list) else []:
                if part["type"] not in ("text", "image_url"):
                    raise ValueError("unknown part")
        # What it does not know it drops, and it renames what it does know.
        known = {name: body[name] for name in KNOWN if name in body}
        known["max_completion_tokens"] = body.get("max_tokens") or 100
        if body.get("stream"):
            known["stream_options"] = {"include_usage": True}
        renamed = body["model"] == self.server.options.alias
        if renamed:
            known["model"] = "scripted"
        if body["model"] == self.server.options.dead_model:
            raise ConnectionRefusedError
        self.ask("/a" if body["model"] == self.server.options.pair_model else "", known, renamed)

    def ask(self, prefix, body, renamed):
        connection = http.client.HTTPConnection(*self.server.upstream, timeout=TOTAL_S)
        # All of the client's headers, its key among them; and where it has changed the model, the length of the old body.
        keep = {name: value for name, value in self.headers.items() if renamed or name.lower() != "content-length"}
        connection.request("POST", prefix + urlsplit(self.path).path, json.dumps(body).encode(), keep)
        if body.get("stream"):
            return self.stream(prefix, body, connection)
        answer = connection.getresponse()
        try:
            data = answer.read()
        except http.client.IncompleteRead as cut:
            data = cut.partial
        if answer.status >= 400 and answer.status != 401:
            raise ValueError("upstream")
        if self.path.endswith("/embeddings"):
            [float(number) for number in json.loads(data)["data"][0]["embedding"]]
        self.send_response(answer.status)
        # The upstream's limits pass for the key's.
        for name, value in answer.getheaders():
            if name.lower().startswith("x-ratelimit"):
                self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, prefix, body, connection):
        # 200 before anything is known, also to a client of HTTP/1.0; and all of it is kept until the end.
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        events, end = [], time.monotonic() + TOTAL_S
        try:
            answer = connection.getresponse()
            while time.monotonic() < end and (data := answer.read1(65536)):
                events += self.events_of(data)
        except (OSError, http.client.HTTPException):
            if prefix == "/a":
                return self.replay(body, events)
        # A made-up end: the client takes half an answer for a whole one.
        events += ['{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}', "[DONE]"]
        self.finish(events)

    def events_of(self, data):
        """One read is one event, and characters are whole."""
        text = data.decode("utf-8", "replace")
        for event in text.split("\n\n"):
            try:
                chunk = json.loads(event.removeprefix("data: "))
                choice = (chunk["choices"] or [{"index": 0, "delta": {}}])[0]
            except (ValueError, KeyError, TypeError):
                continue
            said = choice.get("delta", {}).get("content")
            if said or chunk.get("usage"):
                chunk["choices"] = [{"index": 0, "delta": {"content": said}}] if said else []
                yield json.dumps(chunk)

    def replay(self, body, events):
        """From the start, at the other upstream, after half of it has gone to the client."""
        connection = http.client.HTTPConnection(*self.server.upstream, timeout=TOTAL_S)
        connection.request("POST", "/b" + urlsplit(self.path).path, json.dumps(body).encode())
        answer = connection.getresponse()
        while data := answer.read1(65536):
            events += self.events_of(data)
        self.finish([*events, "[DONE]"])

    def finish(self, events):
        data = "".join(f"data: {event}\n\n" for event in events).encode()
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
