"""Limits over time, tried with windows of a second: no double burst, no lost minute, no refund into the wrong window,
and a Retry-After that is true."""

import time

import plays
from scenario import Failure, Skip, equal, expect, scenario, within

STREAM_S = 2.5


@scenario("QA-05", "steady use below the rate is never refused", "BerriAI/litellm#14204, #14237", needs=["second_keys"])
def _(t):
    key, rate = t.key("second_keys"), t.options.second_limit
    began, count = time.monotonic(), 2 * rate
    for number in range(count):
        # Half of the rate, for longer than a window.
        time.sleep(max(0, began + 2 * number / rate - time.monotonic()))
        equal(t.call(plays.answer(), key).status, 200, f"status after {time.monotonic() - began:.1f} s of steady use")


@scenario("WN-01", "two windows do not make a double burst", "envoyproxy/ratelimit#1215, #32", needs=["second_keys"])
def _(t):
    key, rate = t.key("second_keys"), t.options.second_limit
    for _ in range(5):
        passed, took = two_bursts(t, key, rate)
        # The law of a bucket: what it holds, and what flows in meanwhile.
        within(passed, rate * 0.5, rate + rate * took + 1, f"calls admitted in {took:.2f} s at {rate} a second")
        if took < 0.8:
            return
    raise Skip(f"two bursts of {2 * rate} calls took {took:.1f} s: this machine is too slow to see a double burst")


def two_bursts(t, key, rate):
    """Calls admitted just before and just after the end of a window, and the seconds that both bursts took."""
    # At the start of a second by the clock, so that windows by the clock and windows by the first call both begin here.
    time.sleep(1.02 - time.time() % 1)
    began = time.monotonic()
    t.call(plays.answer(), key)
    # Seconds after the first call: just before the end of its window, just after it.
    before = burst(t, key, 2 * rate, began + 0.75)
    first = time.monotonic() - before[1]
    after = burst(t, key, 2 * rate, began + 1.05)
    return before[0] + after[0], time.monotonic() - first


def burst(t, key, count, at):
    """Waits until then; calls admitted of so many at once, and the seconds that took."""
    time.sleep(max(0, at - time.monotonic()))
    began = time.monotonic()
    answers = t.together(count, lambda number: t.call(plays.answer(), key))
    return sum(answer.status == 200 for answer in answers), time.monotonic() - began


def wait_of(answer):
    """Seconds to wait, by both headers, which must agree to a second."""
    whole, exact = answer.headers.number("retry-after"), answer.headers.number("retry-after-ms")
    expect(whole is not None, "429 without Retry-After")
    expect(whole >= 1 and whole == int(whole), f"Retry-After: {whole:g}, right is a whole number from 1")
    if exact is None:
        return whole
    # Clients obey one or the other, so each must be true: the sooner one is tried.
    within(exact / 1000, whole - 1, whole * 1.1, "retry-after-ms in seconds, beside Retry-After")
    return min(whole, exact / 1000)


@scenario(
    "RI-01",
    "a retry after the time that a refusal names is admitted",
    "openai/openai-node#1840, #1108, openai/openai-python#1102, nextcloud/integration_openai#359, BerriAI/litellm#24677",
    needs=["second_keys"],
)
def _(t):
    key, rate = t.key("second_keys"), t.options.second_limit
    for _ in range(3):
        refused = refused_alone(t, key, rate)
        wait = wait_of(refused)
        within(wait, 0, 3, "seconds to wait at a limit by the second")
        equal(refused.headers.get("x-should-retry", "true"), "true", "x-should-retry")
        time.sleep(wait)
        equal(t.call(plays.answer(), key).status, 200, f"status of a retry after the named {wait:g} s")


def refused_alone(t, key, rate):
    """A refusal after which nothing else spends: the time that it names is then true."""
    t.together(2 * rate, lambda number: t.call(plays.answer(), key))
    for _ in range(5 * rate):
        answer = t.call(plays.answer(), key)
        if answer.status == 429:
            return answer
    raise Failure(f"no refusal in {5 * rate} calls one after the other to a limit of {rate} a second")


@scenario(
    "RI-02",
    "the time that a refusal names is right for the size of the call",
    "BerriAI/litellm#24677, #18953",
    needs=["second_token_keys"],
)
def _(t):
    key, limit = t.key("second_token_keys"), t.options.second_token_limit
    size = int(limit * 0.8)
    play = plays.answer(usage=(10, size - 10))

    def refused():
        answer = t.call(play, key, max_tokens=size)
        return answer if answer.status == 429 else None

    for _ in range(2):
        wait = wait_of(t.until(5, "a refusal", refused))
        within(wait, 0, 3, "seconds to wait at a limit by the second")
        time.sleep(wait)
        equal(t.call(play, key, max_tokens=size).status, 200, f"status of a retry after the named {wait:g} s")


@scenario("RI-03", "a wait that no client should sit out says so", "openai/openai-node#1840", needs=["request_keys"])
def _(t):
    key = t.key("request_keys")
    answers = [t.call(plays.answer(), key) for _ in range(t.options.request_limit + 1)]
    refused = answers[-1]
    equal(refused.status, 429, "status beyond the limit")
    wait = refused.headers.number("retry-after")
    # Clients obey up to a minute; what is longer they would wait, or ignore and hammer.
    if wait is None or wait > 60:
        equal(refused.headers.get("x-should-retry"), "false", f"x-should-retry beside Retry-After {wait}")


@scenario(
    "WN-02",
    "a refund after its window has passed is not free budget",
    "agentclash PR#1217 (review)",
    needs=["second_token_keys"],
)
def _(t):
    key, limit = t.key("second_token_keys"), t.options.second_token_limit
    stream = t.stream(plays.slow(10, STREAM_S / 10, usage=(10, 10)), key, max_tokens=int(limit * 0.9)).read()
    equal((stream.status, stream.done), (200, 1), "status and [DONE]s of the long stream")
    each, began = limit // 4, time.monotonic()
    answers, _ = t.crowd(16, plays.answer(usage=(10, each - 10)), key, max_tokens=each - 10)
    took = time.monotonic() - began
    spent = each * sum(answer.status == 200 for answer in answers)
    within(spent, each, limit + limit * took, f"tokens admitted in {took:.2f} s at {limit} a second")


@scenario(
    "WN-03",
    "a stream that outlives its window is paid by the window that admitted it",
    "api7/aisix#396",
    needs=["second_token_keys"],
)
def _(t):
    key, limit = t.key("second_token_keys"), t.options.second_token_limit
    size = int(limit * 0.9)
    stream = t.stream(plays.slow(10, STREAM_S / 10, usage=(10, size - 10)), key, max_tokens=size).read()
    equal((stream.status, stream.done), (200, 1), "status and [DONE]s of the long stream")
    answer = t.call(plays.answer(usage=(10, 10)), key, max_tokens=size)
    equal(answer.status, 200, "status of the same call right after it")
