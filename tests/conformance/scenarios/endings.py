"""How a stream ends: the client can always tell a whole answer from one that broke off, and gets no piece twice."""

import plays
from scenario import equal, expect, scenario

SOURCES = "easychen/openai-api-proxy#33, BerriAI/litellm#14457"


@scenario("SE-01", "an upstream that dies in mid-stream is an error to the client, never a made-up end", SOURCES)
def _(t):
    for end in ("reset", "close"):
        stream = t.stream(plays.slow(4, 0.02, end=end)).read()
        equal(stream.text(), "word word word word", f"text before the end ({end})")
        expect(stream.failed_honestly(), f"after a {end} the stream ends as if all was well ({stream.done} [DONE]s)")
        equal(stream.finishes(), [], f"finish reasons ({end})")


@scenario("SE-02", "a stream that ends without [DONE] and without a reason is broken off, too", SOURCES)
def _(t):
    stream = t.stream(plays.answer("one two", usage=None, finish=False, done=False)).read()
    equal(stream.text(), "one two", "text")
    expect(stream.failed_honestly(), "the stream ends as if all was well")


@scenario("SE-03", "a stream that gave its reason and forgot [DONE] is a whole answer", SOURCES)
def _(t):
    stream = t.stream(plays.answer("one two", done=False)).read()
    equal(
        (stream.text(), stream.finishes(), stream.errors, stream.broken), ("one two", ["stop"], [], None), "the answer"
    )


@scenario("SE-04", "a last event without its blank line is not lost", "graniet/llm#90")
def _(t):
    def play(call, reply):
        data = b"".join(plays.encode(chunk) for chunk in plays.chunks(call, "one two", None))
        reply.begin()
        reply.write(data.rstrip(b"\n"))
        reply.end()

    stream = t.stream(play).read()
    # A browser's decoder drops what has no blank line, so the gateway must complete the event.
    equal((stream.text(), stream.finishes()), ("one two", ["stop"]), "the answer")


@scenario("SE-05", "an upstream's error event reaches the client, and nothing happy follows", SOURCES)
def _(t):
    error = {"error": {"message": "out of memory", "type": "server_error", "param": None, "code": "oom"}}
    stream = t.stream(plays.events(lambda call: [plays.chunk(call, {"content": "one"}), error])).read()
    expect("out of memory" in str(stream.errors), f"the error event is missing: {stream.errors}")
    equal(stream.done, 0, "[DONE]s")


@scenario(
    "SE-06",
    "nothing is replayed after the first byte: no text comes twice",
    "llm_proxy#4 (Elixir)",
    needs=["pair_model"],
)
def _(t):
    script = t.script(plays.in_turn(plays.slow(4, 0.02, end="reset"), plays.answer("word word word word word")))
    stream = t.stream(script, model=t.options.pair_model).read()
    equal(stream.text(), "word word word word", "text")
    equal(len(script.calls), 1, "calls at the upstreams")
    expect(stream.failed_honestly(), "the stream ends as if all was well")


@scenario(
    "SE-07",
    "before the first byte another upstream is tried, once each",
    "envoyproxy/ai-gateway#1571, BerriAI/litellm#40958",
    needs=["pair_model"],
)
def _(t):
    for failure in (plays.error(500), plays.reset, plays.error(429, headers=[("Retry-After", "1")])):
        for stream in (False, True):
            script = t.script(plays.in_turn(failure, plays.answer("from the other one")))
            answer = t.call(script, model=t.options.pair_model, stream=stream)
            equal(answer.status, 200, f"status ({answer.text()[:200]})")
            paths = sorted(call.path for call in script.calls)
            equal(paths, ["/a/v1/chat/completions", "/b/v1/chat/completions"], "paths at the upstreams")
