"""An HTTP/1.1 client on a bare socket: it shows each byte with its time, repairs nothing, follows nothing, retries
nothing. Why not http.client: a scenario must be able to send what no library sends and see how an answer is framed."""

import json
import socket
import ssl
import struct
import time
from urllib.parse import urlsplit

from scenario import Failure, short


class Cut(Failure):
    """The connection ended before its answer did."""


class Headers:
    def __init__(self, lines):
        self.pairs = [
            (name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)
        ]

    def get(self, name, default=None):
        return next((value for known, value in self.pairs if known == name), default)

    def all(self, name):
        return [value for known, value in self.pairs if known == name]

    def __contains__(self, name):
        return self.get(name) is not None

    def number(self, name):
        """The value as a number, or None without the header."""
        text = self.get(name)
        try:
            return None if text is None else float(text)
        except ValueError:
            raise Failure(f"{name}: {text!r} is not a number") from None


class Answer:
    """A whole answer."""

    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    def json(self):
        try:
            return json.loads(self.body)
        except ValueError:
            raise Failure(f"status {self.status}, and the body is not JSON: {short(self.text())}") from None

    def text(self):
        return self.body.decode("utf-8", "replace")


class Exchange:
    """One request on one connection, and its answer as it arrives."""

    def __init__(self, url, request, timeout):
        """`request`: the bytes to send, or a list of them, sent one write each."""
        self.buffer = b""
        self.timeout = timeout
        self.socket = connect(url, timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.began = time.monotonic()
        try:
            for piece in [request] if isinstance(request, bytes) else request:
                self.socket.sendall(piece)
        except OSError:
            pass  # It may refuse before it has read all, and its answer says why.
        self.status, self.version, self.headers = self._head()
        # Seconds until the head was there.
        self.waited = time.monotonic() - self.began

    def _head(self):
        while True:
            head = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            words = head[0].split(" ", 2)
            if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
                raise Failure(f"not an HTTP answer: {short(head[0])}")
            if words[1] != "100":
                return int(words[1]), words[0], Headers(head[1:])

    def _more(self):
        try:
            data = self.socket.recv(65536)
        except socket.timeout:
            raise Failure(f"no byte for {self.timeout:g} s") from None
        except OSError as error:
            raise Cut(f"the gateway broke the connection: {error}") from None
        if not data:
            raise Cut("the gateway closed the connection before the end of its answer")
        self.buffer += data

    def _until(self, mark):
        while mark not in self.buffer:
            self._more()
        line, self.buffer = self.buffer.split(mark, 1)
        return line

    def _take(self, most):
        if not self.buffer:
            self._more()
        piece, self.buffer = self.buffer[:most], self.buffer[most:]
        return piece

    def pieces(self):
        """The body as it arrives, without its framing: (seconds since the request, bytes)."""
        length = self.headers.get("content-length")
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            yield from self._chunks()
        elif length is not None:
            left = int(length)
            while left:
                piece = self._take(left)
                left -= len(piece)
                yield time.monotonic() - self.began, piece
        elif self.status not in (204, 304):
            yield from self._to_the_close()

    def _chunks(self):
        while True:
            line = self._until(b"\r\n").split(b";")[0]
            try:
                left = int(line, 16)
            except ValueError:
                raise Failure(f"not the length of a chunk: {short(line)}") from None
            if left == 0:
                while self._until(b"\r\n"):
                    pass
                return
            while left:
                piece = self._take(left)
                left -= len(piece)
                yield time.monotonic() - self.began, piece
            self._until(b"\r\n")

    def _to_the_close(self):
        while True:
            try:
                piece = self._take(65536)
            except Cut as cut:
                if "broke" in str(cut):
                    raise
                return
            yield time.monotonic() - self.began, piece

    def read(self):
        body = b"".join(piece for _, piece in self.pieces())
        self.close()
        return Answer(self.status, self.headers, body)

    def close(self):
        """An orderly end (FIN)."""
        self.socket.close()

    def reset(self):
        """RST: what a client that is killed sends, or a NAT that has forgotten it."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def connect(url, timeout):
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    try:
        plain = socket.create_connection((parts.hostname, parts.port or (443 if secure else 80)), timeout)
        return ssl.create_default_context().wrap_socket(plain, server_hostname=parts.hostname) if secure else plain
    except OSError as error:
        raise Failure(f"{url} cannot be reached: {error}") from None


def head(method, path, host, headers, version="HTTP/1.1"):
    """The bytes of a request's head. `headers`: pairs, sent as they are spelled."""
    lines = [f"{method} {path} {version}"] + ([f"Host: {host}"] if host else [])
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
