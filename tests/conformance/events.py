"""Reads an event stream as a client does (the grammar of the HTML standard) and sums up a streamed chat."""

import json
import re

from http1 import Cut
from scenario import Failure, short


class Decoder:
    """Bytes in, payloads of events out. A rest without its blank line is no event."""

    def __init__(self):
        self.rest = b""
        self.data = []
        # The last byte ended a line with CR: an LF that follows belongs to it.
        self.after_cr = False

    def push(self, piece):
        """The payloads that `piece` completes. Events without data are none."""
        if self.after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self.after_cr = piece.endswith(b"\r")
        *lines, self.rest = re.split(rb"\r\n|\n|\r", self.rest + piece)
        return [payload for payload in map(self._line, lines) if payload is not None]

    def _line(self, line):
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self.data.append(value[1:] if value.startswith(b" ") else value)
        elif self.data:
            payload, self.data = b"\n".join(self.data), []
            return payload
        return None


class Streamed:
    """A streamed answer: open while it is read, then complete."""

    def __init__(self, exchange):
        self.exchange = exchange
        self.status = exchange.status
        self.headers = exchange.headers
        self.raw = b""
        self.times = []  # seconds at which bytes came
        self.arrivals = []  # seconds at which each chunk was whole
        self.chunks = []
        self.done = 0
        self.errors = []
        # Why the connection broke, or None while it has not.
        self.broken = None
        self._decoder = Decoder()
        self._pieces = exchange.pieces()

    def read(self, until=None):
        """Reads to the end, or until `until(self)` holds after a piece."""
        try:
            for at, piece in self._pieces:
                self._take(at, piece)
                if until and until(self):
                    return self
        except Cut as cut:
            self.broken = str(cut)
        self.exchange.close()
        return self

    def _take(self, at, piece):
        self.raw += piece
        self.times.append(at)
        for payload in self._decoder.push(piece):
            if payload == b"[DONE]":
                self.done += 1
                continue
            try:
                chunk = json.loads(payload)
            except ValueError:
                raise Failure(f"an event that is not JSON: {short(payload)}") from None
            if isinstance(chunk, dict) and "error" in chunk:
                self.errors.append(chunk["error"])
            else:
                self.chunks.append(chunk)
                self.arrivals.append(at)

    def choices(self, index=None):
        for chunk in self.chunks:
            for choice in chunk.get("choices") or ():
                if index is None or choice.get("index", 0) == index:
                    yield choice

    def text(self, index=None):
        pieces = (
            (choice.get("delta") or {}).get("content") or choice.get("text") or "" for choice in self.choices(index)
        )
        return "".join(pieces)

    def finishes(self, index=None):
        return [choice["finish_reason"] for choice in self.choices(index) if choice.get("finish_reason")]

    def usages(self):
        return [chunk["usage"] for chunk in self.chunks if chunk.get("usage")]

    def failed_honestly(self):
        """The client can tell that the answer is not whole: an error event, or a broken connection, and no happy end."""
        return bool(self.errors or self.broken) and not self.done
