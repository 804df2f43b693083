"""A limit holds: for one call, for many at once, for any kind of unit; and what fits is never refused. Limits of several
levels are in `levels`, those of short windows in `windows`."""

import plays
from context import envelope
from scenario import equal, expect, scenario, within

REFUSED = ("rate_limit_exceeded", "insufficient_quota", "request_too_large", "tokens", "requests")
OVERSHOOT = "BerriAI/litellm#18730, #5783, envoyproxy/ai-gateway#680, Kuadrant/limitador#506 (Kuadrant RFC 0021)"


def admitted(answers, script):
    """How many calls reached the upstream; all others must have been refused properly, and were never sent on."""
    for answer in answers:
        if answer.status != 200:
            envelope(answer, 429)
    passed = sum(answer.status == 200 for answer in answers)
    equal(len(script.calls), passed, "calls at the upstream beside answers 200")
    return passed


@scenario(
    "OV-01", "parallel calls together never pass the limit, and what fits is admitted", OVERSHOOT, needs=["token_keys"]
)
def _(t):
    each = t.limit // 6
    answers, script = t.crowd(30, plays.answer(usage=(10, each - 10)), t.key("token_keys"), max_tokens=each - 10)
    # One less than fits on paper: a hold may be a little more than the call then uses.
    within(admitted(answers, script), 4, 6, f"calls of {each} admitted to {t.limit} tokens")


@scenario("OV-02", "parallel streams together never pass the limit", OVERSHOOT, needs=["token_keys"])
def _(t):
    each = t.limit // 6
    script = t.script(plays.slow(5, 0.2, usage=(10, each - 10)))
    key = t.key("token_keys")

    def one(number):
        stream = t.stream(script, key, max_tokens=each - 10)
        stream.read()
        return stream

    streams = t.together(30, one)
    within(sum(stream.status == 200 for stream in streams), 4, 6, f"streams of {each} admitted to {t.limit} tokens")
    expect(all(stream.status in (200, 429) for stream in streams), f"statuses {[stream.status for stream in streams]}")


@scenario(
    "OV-03",
    "parallel calls together never pass a request limit: exactly as many as it says",
    "BerriAI/litellm#22002, #10555",
    needs=["request_keys"],
)
def _(t):
    answers, script = t.crowd(4 * t.options.request_limit, plays.answer(), t.key("request_keys"), max_tokens=5)
    equal(admitted(answers, script), t.options.request_limit, f"calls admitted of {4 * t.options.request_limit}")


@scenario(
    "OV-04",
    "parallel calls together never spend more than the money there is",
    "BerriAI/litellm#34732, PR#40002, #26672",
    needs=["money_keys", "money_limit", "price"],
)
def _(t):
    each = int(t.options.money_limit / t.options.price * 1e6 / 6)
    answers, script = t.crowd(30, plays.answer(usage=(10, each - 10)), t.key("money_keys"), max_tokens=each - 10)
    within(admitted(answers, script), 4, 6, "calls of a sixth of the budget admitted to it")


@scenario(
    "OV-05", "what is used beyond the hold is charged: a debt blocks", "BerriAI/litellm#26672", needs=["token_keys"]
)
def _(t):
    key = t.key("token_keys")
    # The upstream ignores the cap.
    equal(t.call(plays.answer(usage=(10, t.limit + 500)), key, max_tokens=50).status, 200, "status of the call")
    script = t.script(plays.answer())
    t.until(5, "the next call is refused", lambda: t.call(script, key, max_tokens=5).status == 429)
    envelope(t.call(script, key, max_tokens=5), 429)


@scenario(
    "OV-06",
    "parallel calls without a cap are held at an estimate, not at nothing",
    "tensorzero/tensorzero#3648, BerriAI/litellm-docs#806, gptme/gptme#1828",
    needs=["token_keys", "default_max_tokens"],
)
def _(t):
    most = t.limit // t.options.default_max_tokens
    answers, script = t.crowd(3 * most, plays.answer(usage=(10, 20)), t.key("token_keys"))
    within(
        admitted(answers, script),
        max(1, most * 0.7),
        most,
        f"calls of {t.options.default_max_tokens} by default admitted to {t.limit}",
    )


@scenario(
    "LM-01",
    "usage is charged, not calls; and a call that fits is not refused",
    "wso2/api-platform#2932, envoyproxy/ai-gateway#2460",
    needs=["token_keys"],
)
def _(t):
    key, each = t.key("token_keys"), t.limit // 6
    script = t.script(plays.answer(usage=(10, each - 10)))
    statuses = [t.call(script, key, max_tokens=each - 10).status for _ in range(12)]
    passed = statuses.count(200)
    within(passed, 5, 6, f"calls of {each} that {t.limit} tokens are good for")
    equal(statuses, [200] * passed + [429] * (12 - passed), "statuses")


@scenario(
    "LM-02",
    "a spent key is spent alone: others go on",
    "agentgateway/website#573, BerriAI/litellm#20256",
    needs={"request_keys": 2},
)
def _(t):
    spent, other = t.key("request_keys"), t.key("request_keys")
    for _ in range(t.options.request_limit):
        equal(t.call(plays.answer(), spent).status, 200, "status within the limit")
    equal(t.call(plays.answer(), spent).status, 429, "status beyond the limit")
    equal(t.call(plays.answer(), other).status, 200, "status of another key")
    equal(t.call(plays.answer()).status, 200, "status of a key without limits")


@scenario(
    "LM-03",
    "a call that can never fit is refused, says so, and empties nothing",
    "Portkey-AI/gateway (rateLimiter.ts: a refused check that writes)",
    needs=["token_keys"],
)
def _(t):
    key = t.key("token_keys")
    script = t.script(plays.answer())
    for stream in (False, True):
        answer = t.call(script, key, max_tokens=2 * t.limit, stream=stream)
        envelope(answer, (400, 413, 429))
        if answer.status == 429:
            equal(answer.headers.get("x-should-retry"), "false", "x-should-retry: a client would wait for nothing")
    equal(len(script.calls), 0, "calls at the upstream")
    equal(t.call(script, key, max_tokens=t.limit // 2).status, 200, "status of a call that fits")


@scenario(
    "LM-04",
    "a refused call costs nothing",
    "BerriAI/litellm (a limiter that counts before it compares)",
    needs=["token_keys", "request_keys"],
)
def _(t):
    key = t.key("token_keys")
    for _ in range(20):
        envelope(t.call(plays.answer(), key, max_tokens=t.limit + 1), (400, 413, 429))
    equal(
        t.call(plays.answer(usage=(5, 5)), key, max_tokens=int(t.limit * 0.9)).status,
        200,
        "status of a call of nine tenths",
    )
    # A malformed call is no call: the limit is still there for as many as it says.
    key = t.key("request_keys")
    for _ in range(20):
        envelope(t.call(raw=b"{", key=key), 400)
    for number in range(t.options.request_limit):
        equal(t.call(plays.answer(), key).status, 200, f"status of call {number + 1} after malformed ones")


@scenario(
    "LM-05", "no single call passes the ceiling of a call", "praxis-proxy/ai#1122", needs=["ceiling_keys", "ceiling"]
)
def _(t):
    key = t.key("ceiling_keys")
    script = t.script(plays.answer())
    answer = t.call(script, key, max_tokens=t.options.ceiling + 1)
    envelope(answer, (400, 413, 429))
    equal(len(script.calls), 0, "calls at the upstream")
    equal(t.call(script, key, max_tokens=t.options.ceiling // 2).status, 200, "status of a call below the ceiling")


@scenario("PC-01", "a stream holds its place until it ends", "api7/aisix#688, PR#690", needs=["parallel_keys"])
def _(t):
    key, gate = t.key("parallel_keys"), t.gate()

    def play(call, reply):
        reply.begin()
        reply.event(plays.chunk(call, {"content": "one"}))
        reply.wait(30, gate)
        reply.event(plays.chunk(call, {}, finish="stop"))
        reply.write(b"data: [DONE]\n\n")
        reply.end()

    stream = t.stream(play, key).read(until=lambda stream: stream.chunks)
    envelope(t.call(plays.answer(), key), 429)
    equal(t.call(plays.answer()).status, 200, "status for another key")
    gate.set()
    equal(stream.read().done, 1, "[DONE]s")
    t.until(2, "the place is free after the stream's end", lambda: t.call(plays.answer(), key).status == 200)


@scenario(
    "PC-02", "of parallel calls as many run as may", "api7/aisix#690, BerriAI/litellm#27955", needs=["parallel_keys"]
)
def _(t):
    answers, script = t.crowd(12, plays.answer(), t.key("parallel_keys"))
    equal(admitted(answers, script), 1, "calls that ran at once")


@scenario(
    "PC-03",
    "calls one after the other never meet a limit of one in flight",
    "BerriAI/litellm#34534, api7/aisix#688",
    needs=["parallel_keys"],
)
def _(t):
    key = t.key("parallel_keys")
    for number in range(100):
        answer = t.call(plays.answer(), key, stream=number % 2 == 1)
        equal(answer.status, 200, f"status of call {number + 1}, sent when the one before it had ended")
