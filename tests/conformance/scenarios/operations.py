"""The gateway is killed, its store goes away: with commands that the configuration gives, one scenario at a time."""

import time

import plays
from context import envelope
from scenario import Failure, equal, expect, scenario, within


def ready(t):
    """The gateway answers again."""

    def look():
        try:
            return t.call(plays.answer()).status == 200
        except Failure:
            return False

    t.until(20, "the gateway answers", look)


@scenario(
    "OP-01",
    "a killed gateway that starts again remembers what was used",
    "apache/apisix#12482, #12736, BerriAI/litellm PR#30661",
    needs=["kill_command", "request_keys"],
    alone=True,
)
def _(t):
    key, limit = t.key("request_keys"), t.options.request_limit
    used = limit // 2
    for _ in range(used):
        equal(t.call(plays.answer(), key).status, 200, "status within the limit")
    time.sleep(t.options.durable_after)
    t.run_hook("kill_command")
    ready(t)
    passed = sum(answer.status == 200 for answer in t.together(2 * limit, lambda number: t.call(plays.answer(), key)))
    equal(passed, limit - used, f"calls admitted after the kill, of {limit} with {used} used")


@scenario(
    "OP-02",
    "what a killed gateway held comes back in time, also while calls go on",
    "BerriAI/litellm#20256, PR#28160, PR#37539 review, #27955",
    needs=["kill_command", "lease", "token_keys", "parallel_keys"],
    alone=True,
)
def _(t):
    key, place = t.key("token_keys"), t.key("parallel_keys")
    streams = [t.stream(plays.slow(500, 0.1), one, max_tokens=int(t.limit * 0.8)) for one in (key, place)]
    for stream in streams:
        equal(stream.read(until=lambda stream: len(stream.chunks) >= 5).status, 200, "status of the stream")
    t.run_hook("kill_command")
    ready(t)
    end = time.monotonic() + t.options.lease + 5

    def free(key, **fields):
        # Each look is traffic of the key: a hold whose time is renewed by traffic never ends.
        while t.call(plays.answer(), key, **fields).status != 200:
            expect(
                time.monotonic() < end, f"not free {t.options.lease + 5:g} s after the kill: {fields or 'the place'}"
            )
            time.sleep(0.2)

    free(place)
    free(key, max_tokens=int(t.limit * 0.8))


def outage(t, how):
    """What the policy promises while the store is away, and that all is well again soon after."""
    key, limit = t.key("request_keys"), t.options.request_limit
    equal(t.call(plays.answer(), key).status, 200, "status before")
    t.run_hook(how)
    try:
        for _ in range(5):
            exchange = t.open(plays.answer(), key)
            within(exchange.waited, 0, 2, "seconds until an answer while the store is away")
            answer = exchange.read()
            if t.options.store_policy == "closed":
                envelope(answer, (429, 503))
                expect(answer.headers.number("retry-after") is not None, f"status {answer.status} without Retry-After")
            else:
                equal(answer.status, 200, "status while the store is away (policy open)")
    finally:
        t.run_hook("store_start_command")
    t.until(10, "calls are admitted again", lambda: t.call(plays.answer(), key).status == 200)
    passed = sum(t.call(plays.answer(), key).status == 200 for _ in range(2 * limit))
    expect(passed < limit, f"{passed} more calls were admitted to a limit of {limit} afterwards")


STORE = ["store_policy", "store_start_command", "request_keys"]
SOURCES = "BerriAI/litellm#33923, #35528, PR#35273, JuanLunaIA/aegis-latent-core#67, hikariming/ghfind#109"


@scenario(
    "RD-03",
    "without its store the gateway does what its policy says, at once",
    SOURCES,
    needs=["store_stop_command", *STORE],
    alone=True,
)
def _(t):
    outage(t, "store_stop_command")


@scenario(
    "RD-04",
    "a store that accepts and never answers holds no call up",
    SOURCES,
    needs=["store_freeze_command", *STORE],
    alone=True,
)
def _(t):
    outage(t, "store_freeze_command")


@scenario(
    "RD-01",
    "a store that forgets its scripts is not felt",
    "redis-rs/redis-rs#2085, Openpanel-dev/groupmq#16, bee-queue/bee-queue#316",
    needs=["store_flush_command", "request_keys"],
    alone=True,
)
def _(t):
    key = t.key("request_keys")
    for _ in range(3):
        equal(t.call(plays.answer(), key).status, 200, "status before")
        t.run_hook("store_flush_command")
        equal(t.call(plays.answer(), key).status, 200, "status after the store forgot its scripts")
