"""One shape for every error, whoever made it, and a real status as long as nothing has been sent."""

import plays
from context import envelope
from events import Streamed
from scenario import equal, expect, scenario, within

SOURCES = "vllm-project/vllm#12886, ray-project/ray#64833, easychen/openai-api-proxy#33"


@scenario("EE-01", "whatever is wrong with a request, the error has one shape and the right status", SOURCES)
def _(t):
    script = t.script(plays.answer())
    for raw in (b"{", b"[]", b'"text"', b"", b"\xff\xfe"):
        envelope(t.call(raw=raw), 400)
    envelope(t.call(script, messages={"role": "user"}), 400)
    envelope(t.call(script, model=7), 400)
    envelope(t.call(raw=b'{"messages":[]}'), 400)
    envelope(t.call(script, model="no-such-model"), 404, "model_not_found")
    envelope(t.call(script, path="/no/such/path"), 404)
    envelope(t.get("/models/no-such-model"), 404)
    answer = t.get("/chat/completions")
    envelope(answer, (404, 405))
    expect(answer.status == 404 or answer.headers.get("allow"), "405 without `Allow`")
    equal(len(script.calls), 0, "calls at the upstream")


@scenario("EE-02", "an upstream's refusal of a request is the client's, streamed or not", SOURCES)
def _(t):
    for stream in (False, True):
        answer = t.call(plays.error(400, "context_length_exceeded", "too long", "messages"), stream=stream)
        error = envelope(answer, 400, "context_length_exceeded")
        equal((error["message"], error["param"]), ("too long", "messages"), "message and param")


@scenario("EE-03", "an upstream that fails before its first byte is a 5xx in JSON, streamed or not", SOURCES)
def _(t):
    failures = (
        plays.error(500),
        plays.error(503, kind="server_error"),
        plays.raw(b"<html>Bad Gateway</html>", 502),
        plays.reset,
    )
    for failure in failures:
        for stream in (False, True):
            answer = t.call(failure, stream=stream)
            envelope(answer, (500, 502, 503, 504))


@scenario("EE-04", "an upstream's own 401 is not the client's", SOURCES)
def _(t):
    # The client's key is fine: an SDK would tell the user to change it. Nor may the provider's message quote ours.
    for status in (401, 403):
        answer = t.call(plays.error(status, "invalid_api_key", "Incorrect API key provided: sk-prov-123"))
        envelope(answer, (500, 502, 503))
        expect("sk-prov-123" not in answer.text(), "the provider's message with the gateway's key reaches the client")


@scenario("EE-05", "a stream that dies before its first event is not a 200 without an answer", SOURCES)
def _(t):
    def headers_only(call, reply):
        reply.begin()
        reply.close()

    def empty(call, reply):
        reply.begin()
        reply.end()

    for play in (headers_only, empty):
        exchange = t.open(play, stream=True)
        if exchange.status == 200:
            expect(Streamed(exchange).read().failed_honestly(), "200, and an empty stream that ends as if all was well")
        else:
            envelope(exchange.read(), (500, 502, 503, 504))


@scenario("EE-06", "a dead upstream is a 5xx within seconds", "open-webui/open-webui#11115", needs=["dead_model"])
def _(t):
    for stream in (False, True):
        exchange = t.open(model=t.options.dead_model, stream=stream)
        within(exchange.waited, 0, 10, "seconds until the error")
        envelope(exchange.read(), (500, 502, 503, 504))


@scenario("EE-07", "an answer that is cut short is an error, not a short answer", SOURCES)
def _(t):
    def cut_short(call, reply):
        reply.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n" + b'{"choices":['
        )
        reply.close()

    envelope(t.call(cut_short), (500, 502, 503, 504))
