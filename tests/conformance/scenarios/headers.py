"""Headers that clients pace themselves by, and those that browsers need."""

import re

import plays
from scenario import equal, expect, scenario, within

DURATION = re.compile(r"(\d+h)?(\d+m(?!s))?(\d+(\.\d+)?(s|ms))?")
# What the upstream says of its own limits, and must not be taken for the key's.
FOREIGN = [
    (f"x-ratelimit-{what}-{unit}", value)
    for unit in ("requests", "tokens")
    for what, value in (("limit", "987654"), ("remaining", "987653"), ("reset", "9h8m7s"))
]


def rates(headers, unit, limit, what):
    """The three headers of a unit, checked; returns what remains."""
    values = {name: headers.get(f"x-ratelimit-{name}-{unit}") for name in ("limit", "remaining", "reset")}
    missing = [name for name, value in values.items() if value is None]
    expect(not missing, f"{what}: no x-ratelimit-{{{','.join(missing)}}}-{unit}")
    equal(values["limit"], str(limit), f"{what}: x-ratelimit-limit-{unit}")
    expect(
        values["remaining"].isdigit() and int(values["remaining"]) <= limit,
        f"{what}: remaining {values['remaining']!r}",
    )
    expect(
        values["reset"] and DURATION.fullmatch(values["reset"]), f"{what}: reset {values['reset']!r} is not like 6m0s"
    )
    return int(values["remaining"])


@scenario(
    "HC-07",
    "every answer has the key's own rate-limit headers: streams, errors and refusals too",
    "BerriAI/litellm#27748, PR#27747, headroomlabs-ai/headroom#57, api7/aisix#24, agentgateway/agentgateway#1313, BerriAI/litellm#5957",
    needs=["token_keys", "request_keys"],
)
def _(t):
    fine = plays.answer(headers=FOREIGN)
    embeddings = [("embeddings", fine, {"path": "/embeddings"})] if t.options.embedding_model else []
    asked = [
        ("a chat", fine, {}),
        ("a stream", fine, {"stream": True}),
        ("a completion", fine, {"path": "/completions"}),
        *embeddings,
        ("an upstream's 500", plays.error(500, headers=FOREIGN), {}),
        ("an upstream's 400", plays.error(400, headers=FOREIGN), {"stream": True}),
    ]
    for pool, unit, limit in (("token_keys", "tokens", t.limit), ("request_keys", "requests", t.options.request_limit)):
        key = t.key(pool)
        for what, play, fields in asked:
            # Embeddings have no cap.
            cap = {} if fields.get("path") == "/embeddings" else {"max_tokens": 5}
            rates(t.call(play, key, **cap, **fields).headers, unit, limit, what)
        refused = t.until(5, "a refusal", lambda: beyond(t, key))
        rates(refused.headers, unit, limit, "a refusal")


def beyond(t, key):
    answer = t.call(plays.answer(), key, max_tokens=t.limit - 5)
    return answer if answer.status == 429 else None


@scenario(
    "HC-02",
    "what remains falls with each call, in streams with their first byte",
    "envoyproxy/ai-gateway#1754, BerriAI/litellm#27748",
    needs=["token_keys", "request_keys"],
)
def _(t):
    key = t.key("request_keys")
    seen = [t.call(plays.answer(), key).headers.number("x-ratelimit-remaining-requests") for _ in range(3)]
    left = t.options.request_limit
    equal(seen, [left - 1, left - 2, left - 3], "x-ratelimit-remaining-requests of three calls")
    key, seen = t.key("token_keys"), []
    for number in range(4):
        answer = t.open(plays.answer(usage=(10, 490)), key, max_tokens=490, stream=number % 2 == 1)
        seen.append(answer.headers.number("x-ratelimit-remaining-tokens"))
        answer.read()
    expect(None not in seen, f"x-ratelimit-remaining-tokens is missing: {seen}")
    steps = [earlier - later for earlier, later in zip(seen, seen[1:])]
    expect(
        all(490 <= step <= 510 for step in steps), f"x-ratelimit-remaining-tokens fell by {steps}, right is 500 each"
    )


@scenario("RI-05", "an upstream's 429 reaches the client with its Retry-After", "BerriAI/litellm#21553, #27823")
def _(t):
    for stream in (False, True):
        answer = t.call(plays.error(429, "rate_limit_exceeded", headers=[("Retry-After", "7")]), stream=stream)
        equal(answer.status, 429, "status")
        wait = answer.headers.number("retry-after")
        expect(wait is not None, "no Retry-After")
        within(wait, 6, 9, "Retry-After")


@scenario(
    "RI-04",
    "when all upstreams are over their limits, the earliest wake-up is named",
    "BerriAI/litellm#40958, #3646, #34836, #32574",
    needs=["pair_model"],
)
def _(t):
    for waits in ((50, 5), (5, 50)):
        script = t.script(plays.in_turn(*(plays.error(429, headers=[("Retry-After", str(wait))]) for wait in waits)))
        answer = t.call(script, model=t.options.pair_model)
        equal(answer.status, 429, "status")
        wait = answer.headers.number("retry-after")
        expect(wait is not None, "no Retry-After")
        within(wait, 4, 7, f"Retry-After when the upstreams say {waits[0]} and {waits[1]}")


@scenario(
    "HC-01",
    "a browser may call: preflight without a key, and CORS on errors too",
    "ollama/ollama#4388, lidge-jun/opencodex#1773, jeromeleong/poe2openai#15, bricks-cloud/BricksLLM#45",
    needs=["cors_origin"],
)
def _(t):
    origin = t.options.cors_origin
    wanted = "authorization,content-type,x-stainless-os,x-stainless-timeout,x-stainless-retry-count"
    ask = [("Origin", origin), ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", wanted)]
    for path in ("/chat/completions", "/models"):
        answer = t.open(path=path, raw=b"", method="OPTIONS", headers=ask).read()
        within(answer.status, 200, 204, f"status of the preflight of {path}")
        allowed = answer.headers.get("access-control-allow-headers", "").lower()
        expect(allowed == "*" or all(name in allowed for name in wanted.split(",")), f"allowed headers: {allowed!r}")
    for key, status in ((t.options.key, 200), ("nobody", 401)):
        headers = [("Origin", origin), ("Authorization", f"Bearer {key}"), ("Content-Type", "application/json")]
        answer = t.call(plays.answer(), headers=headers)
        equal(answer.status, status, "status")
        expect(
            answer.headers.get("access-control-allow-origin") in (origin, "*"), f"status {status} without CORS header"
        )
