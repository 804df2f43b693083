"""Upstreams that fail: what was held comes back, what was delivered is paid, and nothing stays locked."""

import plays
from account import Account
from scenario import equal, expect, scenario

LEAKS = "BerriAI/litellm#27639, #40050, #36926, #20256"


@scenario("FL-01", "a call that an upstream failed or refused costs no tokens", LEAKS, needs={"token_keys": 2})
def _(t):
    failures = (
        plays.error(500),
        plays.error(503),
        plays.reset,
        plays.error(400),
        plays.error(429),
        plays.raw(b"no", 502),
    )
    for stream in (False, True):
        account = Account(t)
        for failure in failures * 3:
            status = t.call(failure, account.key, max_tokens=int(t.limit * 0.7), stream=stream).status
            expect(status not in (200, 0), f"status {status} for an upstream that failed")
        account.charges(0)


@scenario(
    "FL-02",
    "an upstream that dies in mid-stream is paid for what it delivered",
    "BerriAI/litellm#14457",
    needs=["token_keys"],
)
def _(t):
    account = Account(t)
    stream = t.stream(plays.slow(200, 0, end="reset"), account.key, max_tokens=int(t.limit * 0.7)).read()
    equal(len(stream.chunks), 200, "chunks delivered")
    account.charges(160, 350)


@scenario(
    "FL-03",
    "after an upstream that never answered the key is not locked",
    "BerriAI/litellm#20256",
    needs=["parallel_keys", "token_keys", "response_timeout"],
)
def _(t):
    key = t.key("parallel_keys")
    equal(t.call(plays.hang, key).status, 504, "status")
    t.until(2, "the place is free", lambda: t.call(plays.answer(), key).status == 200)
    key = t.key("token_keys")
    equal(t.call(plays.hang, key, model=t.slow_model, max_tokens=int(t.limit * 0.7)).status, 504, "status")
    # What it may have produced unseen may be charged: some, in the seconds it had.
    t.until(3, "the hold is free", lambda: t.call(plays.answer(), key, max_tokens=int(t.limit * 0.7)).status == 200)


@scenario(
    "FL-04",
    "a second upstream that answers is charged once, the first one not",
    "llm_proxy#4 (Elixir), BerriAI/litellm#35569",
    needs=["token_keys", "pair_model"],
)
def _(t):
    account = Account(t)
    for failure in (plays.error(500), plays.reset):
        script = t.script(plays.in_turn(failure, plays.answer(usage=(100, 50))))
        equal(t.call(script, account.key, model=t.options.pair_model, max_tokens=1000).status, 200, "status")
        equal(len(script.calls), 2, "calls at the upstreams")
    account.charges(300)
