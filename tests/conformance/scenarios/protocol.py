"""Paths, framing and versions of HTTP: what reaches the upstream, and how. Contents of bodies are in `payloads`."""

import json
import time
import zlib
from urllib.parse import urlsplit

import http1
import plays
from context import envelope
from events import Streamed
from scenario import equal, expect, inner, scenario, short, within


@scenario(
    "WC-06",
    "spellings of a path are served or answered 404 in JSON, never redirected",
    "BerriAI/litellm#8350, sigoden/aichat#767, Kaoruha/GinkGO#5389",
)
def _(t):
    root = t.options.base_url.rstrip("/").removesuffix("/v1")
    spellings = ("/v1/chat/completions", "/v1/chat/completions/", "/v1//chat/completions", "/chat/completions")
    for path in (*spellings, "/v1/v1/chat/completions"):
        script = t.script(plays.answer())
        answer = t.call(script, base=root, path=path)
        if answer.status == 200:
            equal([call.path for call in script.calls], ["/v1/chat/completions"], f"{path} reached the upstream as")
        else:
            expect(path != spellings[0], f"{path} is answered {answer.status}: {short(answer.text())}")
            envelope(answer, 404)
    answer = t.get("/v1/models/", base=root)
    if answer.status != 200:
        envelope(answer, 404)


@scenario(
    "WC-09", "the list of models comes at once, whatever the upstreams do", "open-webui/open-webui#11115, #11228, #8146"
)
def _(t):
    t.get("/models")  # The first call of a process may be slow.
    for _ in range(10):
        exchange = t.open(path="/models", raw=b"", method="GET")
        within(exchange.waited, 0, 0.5, "seconds until the list")
        answer = exchange.read()
        equal(answer.status, 200, "status")
        body = answer.json()
        equal(inner(body, "object"), "list", "object")
        ids = [inner(model, "id") for model in inner(body, "data")]
        expect(ids and all(isinstance(id, str) for id in ids), f"the ids are not texts: {ids}")
        expect(t.options.model in ids, f"{t.options.model} is not in the list {ids}")


@scenario(
    "HC-04",
    "a chunked request reaches the upstream whole, with one framing",
    "mostlygeek/llama-swap#11, gravitee-io/gravitee-api-management#17740, HA7CH/ai-native-company#14",
)
def _(t):
    script = t.script(plays.answer())
    body = json.dumps(t.body(script, "/chat/completions", {"max_tokens": 5})).encode()
    pieces = [body[at : at + 3] for at in range(0, len(body), 3)]
    framed = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nX-Trailer: 1\r\n\r\n"
    headers = [
        ("Authorization", f"Bearer {t.options.key}"),
        ("Content-Type", "application/json"),
        ("Transfer-Encoding", "chunked"),
    ]
    equal(t.open(raw=framed, headers=headers).read().status, 200, "status")
    one_framing(script.first)
    equal(script.first.json(), json.loads(body), "the body at the upstream")


@scenario(
    "HC-03",
    "a request with two lengths is refused: one of them may hide a second request",
    "RFC 9112 6.1, HA7CH/ai-native-company#14",
)
def _(t):
    script = t.script(plays.answer())
    body = json.dumps(t.body(script, "/chat/completions", {})).encode()
    framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    length = ("Content-Length", len(body))
    for second, sent in ((("Transfer-Encoding", "chunked"), framed), (("Content-Length", len(body) + 1), body)):
        headers = [("Authorization", f"Bearer {t.options.key}"), ("Content-Type", "application/json"), length, second]
        equal(t.open(raw=sent, headers=headers).read().status, 400, f"status for {length} and {second}")
    equal(len(script.calls), 0, "calls at the upstream")


@scenario(
    "HC-05",
    "a body that the gateway rewrites has the length of the new one",
    "mostlygeek/llama-swap#11",
    needs=["alias"],
)
def _(t):
    for stream in (False, True):
        script = t.script(plays.answer())
        equal(t.call(script, model=t.options.alias, stream=stream).status, 200, "status")
        one_framing(script.first)
        # It parses, so it is neither cut nor padded.
        equal(inner(script.first.json(), "messages", 0, "role"), "user", "the role at the upstream")


def one_framing(call):
    lengths, codings = call.headers("content-length"), call.headers("transfer-encoding")
    equal(len(lengths) + len(codings), 1, f"framing headers at the upstream (lengths {lengths}, codings {codings})")


@scenario(
    "HC-08",
    "a client of HTTP/1.0 gets no chunked coding; header names count in any case",
    "modelcontextprotocol/python-sdk#637; nginx spoke 1.0 to upstreams for years",
)
def _(t):
    path = urlsplit(t.options.base_url).path.rstrip("/") + "/chat/completions"
    for stream in (False, True):
        body = json.dumps(t.body(plays.answer("one two three"), "/chat/completions", {"stream": stream})).encode()
        for spell in (str.lower, str.upper):
            names = ("Authorization", "Content-Type", "Content-Length")
            values = (f"Bearer {t.options.key}", "application/json", len(body))
            head = http1.head(
                "POST", path, None, [(spell(name), value) for name, value in zip(names, values)], "HTTP/1.0"
            )
            exchange = t.exchange(head + body)
            equal(exchange.status, 200, "status")
            expect("transfer-encoding" not in exchange.headers, "the answer to HTTP/1.0 has a Transfer-Encoding")
            if stream:
                equal(Streamed(exchange).read().text(), "one two three", "text of the stream")
            else:
                equal(inner(exchange.read().json(), "choices", 0, "message", "content"), "one two three", "text")


@scenario("LB-01", "a body over the limit is answered 413 in JSON", "zyycn/codex-proxy-rs#66", needs=["body_limit"])
def _(t):
    script = t.script(plays.answer())
    envelope(t.call(script, padding="x" * t.options.body_limit), 413)
    equal(len(script.calls), 0, "calls at the upstream")
    # It is the announced length that is refused: nobody should have to upload what nobody reads.
    head = [("Authorization", f"Bearer {t.options.key}"), ("Content-Type", "application/json")]
    announced = t.open(raw=b"{", headers=[*head, ("Content-Length", t.options.body_limit * 100)])
    envelope(announced.read(), 413)


@scenario(
    "LB-03",
    "a decompression bomb is refused and harms nobody",
    "zyycn/codex-proxy-rs#66, Anionex/agent-vision-toolkit#30",
)
def _(t):
    deflate = zlib.compressobj(9, wbits=31)
    block = b" " * (1 << 20)
    bomb = b"".join(deflate.compress(block) for _ in range(200)) + deflate.flush()
    headers = [
        ("Authorization", f"Bearer {t.options.key}"),
        ("Content-Type", "application/json"),
        ("Content-Encoding", "gzip"),
    ]
    exchange = t.open(raw=bomb, headers=headers)
    envelope(exchange.read(), (400, 413, 415))
    equal(t.call(plays.answer()).status, 200, "status of the next call")


@scenario(
    "ST-10",
    "each event leaves at once",
    "ggml-org/llama.cpp#20872, #24774, mostlygeek/llama-swap#237, LostRuins/koboldcpp#1168",
    alone=True,
)
def _(t):
    sent = []

    def words(call, reply):
        reply.begin()
        for _ in range(6):
            sent.append(time.monotonic())
            reply.event(plays.chunk(call, {"content": " word"}))
            # Longer than an event may be on its way: one that waits for the next is late.
            reply.wait(0.5)
        reply.write(b"data: [DONE]\n\n")
        reply.end()

    headers = [("Authorization", f"Bearer {t.options.key}"), ("Content-Type", "application/json")]
    stream = t.stream(t.script(words), headers=[*headers, ("Accept-Encoding", "gzip, br")])
    stream.read()
    for place, (left, came) in enumerate(zip(sent, stream.arrivals)):
        within(stream.exchange.began + came - left, 0, 0.4, f"seconds that event {place + 1} was on its way")
    equal(len(stream.arrivals), len(sent), "events")
    equal(stream.headers.get("content-type", "").split(";")[0], "text/event-stream", "content type")
    expect(
        "no-cache" in stream.headers.get("cache-control", ""),
        "no `Cache-Control: no-cache`: a proxy may keep the stream",
    )
    equal(stream.headers.get("x-accel-buffering"), "no", "X-Accel-Buffering")
