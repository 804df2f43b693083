"""The scripted upstream: the model provider behind the gateway under test. What it answers is chosen by each request,
by a mark in its body that names a script; what it was sent, and when the gateway hung up, is written down."""

import itertools
import json
import re
import select
import socket
import struct
import threading
import time

from scenario import Failure, expect, short

MARK = re.compile(rb"script-[0-9a-f]{8}-[0-9]+")
# A gateway that keeps connections open may leave one unused for as long as this.
IDLE = 120


class Left(Exception):
    """The gateway closed its connection before it had the whole answer."""


class Call:
    """One request as it arrived."""

    def __init__(self, method, path, head, body):
        self.at = time.monotonic()
        self.method = method
        self.path = path
        self.head = head
        self.body = body
        # None while it runs; then "answered", "left" (by the gateway) or "broken" (by the script).
        self.ended = None
        self.ended_at = None

    def json(self):
        try:
            return json.loads(self.body)
        except ValueError:
            raise Failure(f"the body at the upstream is not JSON: {short(self.body)}") from None

    def headers(self, name):
        """All values of a header."""
        pairs = (line.partition(":") for line in self.head.split("\r\n")[1:])
        return [value.strip() for known, _, value in pairs if known.strip().lower() == name]

    def end(self, how):
        if self.ended is None:
            self.ended, self.ended_at = how, time.monotonic()


class Script:
    """What happens to the requests that carry its mark."""

    def __init__(self, mark, play):
        self.mark = mark
        self.play = play
        self.calls = []

    @property
    def first(self):
        """The first request that carried the mark."""
        expect(self.calls, "the call did not reach the upstream, or lost its mark on the way")
        return self.calls[0]


class Reply:
    """The scripted side of one answer: plays write to it, wait in it, and may break it."""

    def __init__(self, connection, call):
        self.connection = connection
        self.call = call
        self.broken = False

    def send(self, data):
        try:
            self.connection.sendall(data)
        except OSError:
            raise Left from None

    def whole(self, body, status=200, headers=(), kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        lines = [f"HTTP/1.1 {status} Scripted", f"Content-Type: {kind}", f"Content-Length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in headers]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    def begin(self, headers=()):
        """The head of an event stream."""
        lines = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in headers]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n")

    def write(self, data):
        """One chunk of the body, in one packet if it fits."""
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, payload):
        self.write(encode(payload))

    def end(self):
        self.send(b"0\r\n\r\n")

    def reset(self):
        """RST, wherever the answer stands."""
        self.broken = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def close(self):
        """FIN, wherever the answer stands."""
        self.broken = True
        self.connection.close()

    def wait(self, seconds, gate=None):
        """Until the gate opens or the time is over. Notices a gateway that leaves."""
        end = time.monotonic() + seconds
        while not (gate and gate.is_set()) and time.monotonic() < end:
            readable, _, _ = select.select([self.connection], [], [], min(0.02, max(0, end - time.monotonic())))
            if not readable:
                continue
            try:
                if self.connection.recv(1, socket.MSG_PEEK) == b"":
                    raise Left
            except OSError:
                raise Left from None
            time.sleep(0.02)  # The next request already: not ours to read.


def encode(payload):
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


class Upstream:
    def __init__(self, listen, ordinary):
        """`ordinary`: what is played for requests without a mark."""
        host, _, port = listen.rpartition(":")
        self.ordinary = Script("", ordinary)
        self.scripts = {}
        # Marks of two runs must not meet: a gateway may answer from its cache.
        self._run = f"{time.time_ns() & 0xFFFFFFFF:08x}"
        self._numbers = itertools.count(1)
        self._listener = socket.create_server((host, int(port)), backlog=512)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self):
        return self._listener.getsockname()[1]

    def script(self, play):
        script = Script(f"script-{self._run}-{next(self._numbers)}", play)
        self.scripts[script.mark.encode()] = script
        return script

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(IDLE)
        reader = connection.makefile("rb")
        try:
            while (call := read_request(reader)) and self._answer(connection, call):
                pass
        except (OSError, ValueError, Failure):
            pass  # The gateway has gone, or sent what makes no sense; what came before is written down.
        finally:
            reader.close()
            connection.close()

    def _answer(self, connection, call):
        """True if the connection can take another request."""
        found = MARK.search(call.body)
        script = self.scripts.get(found.group(), self.ordinary) if found else self.ordinary
        script.calls.append(call)
        reply = Reply(connection, call)
        try:
            script.play(call, reply)
        except Left:
            call.end("left")
            return False
        call.end("broken" if reply.broken else "answered")
        return not reply.broken


def read_request(reader):
    """One request, or None at the end of the connection."""
    lines = []
    while line := reader.readline(65536):
        if line in (b"\r\n", b"\n"):
            break
        lines.append(line.rstrip(b"\r\n").decode("latin-1"))
    if not lines or not line:
        return None
    method, path, _ = lines[0].split(" ", 2)
    call = Call(method, path, "\r\n".join(lines), b"")
    length = call.headers("content-length")
    if "chunked" in ",".join(call.headers("transfer-encoding")).lower():
        call.body = read_chunks(reader)
    elif length:
        call.body = reader.read(int(length[0]))
    return call


def read_chunks(reader):
    body = b""
    while size := int(reader.readline().split(b";")[0], 16):
        body += reader.read(size)
        reader.readline()
    while reader.readline() not in (b"\r\n", b"\n", b""):
        pass
    return body
