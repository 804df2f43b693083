"""Time: what is slow is not cut, what is dead does not last. Silence that is filled with comments is in `streaming`."""

import time

import plays
from context import envelope
from scenario import equal, expect, scenario, within

SOURCES = "NVIDIA/OpenShell#641, octos-org/octos#2170, AtomicBot-ai/Atomic-Chat#190, MAXeaglet/commandcode-proxy#19"


@scenario(
    "TK-01",
    "a stream may last longer than any timeout, as long as it moves",
    SOURCES,
    needs=["response_timeout", "idle_timeout"],
)
def _(t):
    gap = 0.5
    words = int(2 * max(t.options.response_timeout, t.options.idle_timeout) / gap)
    stream = t.stream(plays.slow(words, gap)).read()
    equal(
        (stream.text().split(" "), stream.done, stream.errors, stream.broken),
        (["word"] * words, 1, [], None),
        "the stream",
    )


@scenario("TK-02", "a stream that falls silent ends with an error in time", SOURCES, needs=["idle_timeout"])
def _(t):
    limit = t.options.idle_timeout
    script = t.script(plays.slow(3, 0.01, end="silence"))
    began = time.monotonic()
    stream = t.stream(script).read()
    within(time.monotonic() - began, limit - 0.5, limit + 2.5, "seconds until the end")
    equal(stream.text(), "word word word", "text")
    expect(stream.failed_honestly(), "the stream ends as if all was well")
    t.until(2, "the upstream's connection is closed", lambda: script.first.ended == "left")


@scenario("TK-03", "an upstream that never answers is 504 in JSON in time", SOURCES, needs=["response_timeout"])
def _(t):
    limit = t.options.response_timeout
    for stream in (False, True):
        script = t.script(plays.hang)
        exchange = t.open(script, stream=stream)
        within(exchange.waited, limit - 0.5, limit + 2.5, "seconds until the answer")
        envelope(exchange.read(), 504)
        t.until(2, "the upstream's connection is closed", lambda: script.first.ended == "left")
