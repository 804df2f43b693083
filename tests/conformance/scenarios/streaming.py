"""Event streams arrive as they were sent: nothing lost, split, joined or made up between. How they end is in `endings`."""

import re

import plays
from events import Streamed
from scenario import equal, expect, scenario, within

TEXT = "one two three four five"


def joined(*payloads):
    return b"".join(plays.encode(payload) if isinstance(payload, dict) else payload for payload in payloads)


def five(call):
    """Five events, the third without the space after its colon."""
    events = [plays.encode(chunk) for chunk in plays.chunks(call, TEXT, None)]
    events[2] = events[2].replace(b"data: ", b"data:", 1)
    return b"".join(events) + b"data: [DONE]\n\n"


def whole(stream, text, what):
    """The stream has this text, ended properly and once."""
    equal(stream.status, 200, f"{what}: status")
    equal(stream.broken, None, f"{what}: how the connection ended")
    equal(stream.text(), text, f"{what}: text")
    equal(
        (stream.finishes(), stream.done, stream.errors), (["stop"], 1, []), f"{what}: finish reasons, [DONE]s, errors"
    )


@scenario(
    "ST-01",
    "events are whole wherever their bytes are cut, also without the space after the colon",
    "graniet/llm#90, liquidos-ai/AutoAgents#99, vllm-project/aibrix#2653, justlovemaki/AIClient2API#695",
)
def _(t):
    for size in (1, 7, 4096):
        whole(t.stream(plays.cut(size, five)).read(), TEXT, f"pieces of {size}")


@scenario(
    "ST-03",
    "a character that is split over two reads arrives whole",
    "api7/aisix#111, intendant-dev/Intendant#411, musistudio/claude-code-router#1672, danielmiessler/Fabric#2203",
)
def _(t):
    text = "你好 🌍 déjà"
    for size in (1, 2, 3):
        stream = t.stream(
            plays.cut(size, lambda call: joined(*plays.chunks(call, text, None), b"data: [DONE]\n\n"))
        ).read()
        whole(stream, text, f"pieces of {size}")
        expect(b"\xef\xbf\xbd" not in stream.raw, "the stream holds U+FFFD: bytes were decoded before they were whole")


@scenario(
    "ST-04",
    "line ends of all three kinds, comments and other fields do no harm",
    "graniet/llm#90, kortix-ai/suna#3696 and the grammar of the HTML standard, 9.2.6",
)
def _(t):
    def spelled(end):
        def stream(call):
            events = b": a comment\n\n" + b"".join(
                b"id: 7\n" + plays.encode(chunk) for chunk in plays.chunks(call, TEXT, None)
            )
            return (events + b": another\n" + b"data: [DONE]\n\n").replace(b"\n", end)

        return stream

    for end in (b"\n", b"\r\n", b"\r"):
        for size in (5, 4096):
            whole(t.stream(plays.cut(size, spelled(end))).read(), TEXT, f"line end {end!r}, pieces of {size}")


@scenario("ST-06", "one event of a megabyte arrives whole", "liquidos-ai/AutoAgents#99")
def _(t):
    text = "x" * (1 << 20)
    for size in (1000, 1 << 22):
        whole(
            t.stream(plays.cut(size, lambda call: joined(*plays.chunks(call, text, None), b"data: [DONE]\n\n"))).read(),
            text,
            f"pieces of {size}",
        )


@scenario("ST-08", "two choices of one stream stay apart", "graniet/llm#90")
def _(t):
    stream = t.stream(plays.answer(TEXT, choices=2), n=2).read()
    for index in (0, 1):
        equal(stream.text(index), TEXT, f"text of choice {index}")
        equal(stream.finishes(index), ["stop"], f"finish reasons of choice {index}")
    equal(stream.done, 1, "[DONE]s")


@scenario(
    "ST-07",
    "usage that only the gateway asked for stays invisible; who asks sees it once",
    "Arthur-Ficial/apfel#100, headroomlabs-ai/headroom#2026, nguyenphutrong/quotio#460, openai/openai-openapi#240",
)
def _(t):
    for options in ({}, {"stream_options": None}, {"stream_options": {"include_usage": False}}):
        stream = t.stream(plays.answer(TEXT, usage=(7, 5)), **options).read()
        empty = [chunk for chunk in stream.chunks if not chunk.get("choices")]
        equal(empty, [], f"chunks without choices, {options or 'no stream_options'}")
        equal(stream.usages(), [], f"usages, {options or 'no stream_options'}")
        equal(stream.text(), TEXT, "text")
    stream = t.stream(plays.answer(TEXT, usage=(7, 5)), stream_options={"include_usage": True}).read()
    equal(len(stream.usages()), 1, "usages for a client that asked")
    equal(stream.chunks[-1].get("usage", {}).get("completion_tokens"), 5, "completion tokens of the last chunk")


@scenario(
    "ST-02",
    "usage is asked of the upstream for every stream",
    "BerriAI/litellm PR#35290, Kong/kong#14535",
    needs=["token_keys"],
)
def _(t):
    # Whose tokens are limited, their streams must be metered, whatever the client says.
    key = t.key("token_keys")
    for options in ({}, {"stream_options": None}, {"stream_options": {"include_usage": False, "x": 1}}):
        script = t.script(plays.answer())
        t.stream(script, key, max_tokens=5, **options).read()
        asked = script.first.json().get("stream_options") or {}
        equal(asked.get("include_usage"), True, f"include_usage at the upstream for {options or 'no stream_options'}")


@scenario(
    "ST-05",
    "a silent stream gets comments, between events only",
    "BerriAI/litellm#34819, #34374, theopenco/llmgateway#2334, kortix-ai/suna#3696, Wei-Shaw/sub2api#6305",
    needs=["keepalive"],
)
def _(t):
    every = t.options.keepalive
    silence = 2.4 * every

    def play(call, reply):
        pieces = joined(*plays.chunks(call, TEXT, None)) + b"data: [DONE]\n\n"
        reply.begin()
        reply.wait(silence)
        reply.write(pieces[:50])  # Half of the first event, then nothing.
        reply.wait(silence)
        reply.write(pieces[50:])
        reply.end()

    exchange = t.open(play, stream=True)
    within(exchange.waited, 0, every + 0.5, "seconds until the head")
    stream = Streamed(exchange).read()
    whole(stream, TEXT, "after two silences")
    gaps = [later - earlier for earlier, later in zip([exchange.waited, *stream.times], stream.times)]
    within(max(gaps), 0, every + 0.6, "longest silence in seconds")
    # Comments that stand between a blank line and a blank line are empty events to some clients.
    alone = re.search(rb"(?:^|\n\n)(?::[^\n]*\n)+\n", stream.raw)
    expect(not alone, f"a comment is an event of its own: {alone and alone.group()!r}")
