"""Limits that several share: keys of a team, routes of a key, replicas of a gateway."""

import plays
from context import envelope
from scenario import equal, expect, scenario, within


@scenario(
    "LV-01", "two keys of a team share its limit", "maximhq/bifrost#3547, BerriAI/litellm PR#30661", needs=["team_keys"]
)
def _(t):
    team = t.key("team_keys")
    each = t.limit // 6
    script = t.script(plays.answer(usage=(10, each - 10)))
    # Each may use two thirds: the first does, so the second finds one third.
    statuses = [[t.call(script, key, max_tokens=each - 10).status for _ in range(6)] for key in team]
    first, second = [one.count(200) for one in statuses]
    within(first, 3, 4, f"calls of a sixth admitted to the first key {statuses[0]}")
    within(first + second, 5, 6, f"calls of a sixth admitted to the team {statuses}")


@scenario(
    "LV-02",
    "parallel calls of two keys never pass the limit they share",
    "BerriAI/litellm#18730, api7/aisix (levels one by one)",
    needs=["team_keys"],
)
def _(t):
    each = t.limit // 6
    answers, script = t.crowd(30, plays.answer(usage=(10, each - 10)), list(t.key("team_keys")), max_tokens=each - 10)
    passed = sum(answer.status == 200 for answer in answers)
    within(passed, 4, 6, "calls of a sixth admitted to the team")
    equal(len(script.calls), passed, "calls at the upstream beside answers 200")


@scenario(
    "LV-03",
    "a refusal at one level costs nothing at another",
    "api7/aisix (src/quota.rs: levels are checked one by one)",
    needs=["team_keys"],
)
def _(t):
    first, second = t.key("team_keys")
    for _ in range(20):
        # Fits the team, not the member.
        envelope(t.call(plays.answer(), first, max_tokens=int(t.limit * 0.8)), (400, 413, 429))
    third = t.limit // 3
    for key, size in ((first, third), (second, third), (second, int(third * 0.8))):
        answer = t.call(plays.answer(usage=(10, size - 10)), key, max_tokens=size - 10 - 40)
        equal(answer.status, 200, f"status of a call of {size}: the refused ones were charged ({answer.text()[:150]})")


@scenario(
    "LV-04",
    "all routes of a key are one account",
    "maximhq/bifrost#2873, BerriAI/litellm#32865",
    needs=["request_keys"],
)
def _(t):
    key, limit = t.key("request_keys"), t.options.request_limit
    routes = ["/chat/completions", "/completions"] + (["/embeddings"] if t.options.embedding_model else [])
    probes = {route: t.call(plays.answer(), path=route).status for route in routes}
    routes = [route for route, status in probes.items() if status == 200]
    expect(len(routes) >= 2, f"only one route is served: {probes}")
    passed = 0
    for number in range(limit * 2):
        answer = t.call(plays.answer(), key, path=routes[number % len(routes)])
        expect(answer.status in (200, 429), f"status {answer.status} on {routes[number % len(routes)]}")
        passed += answer.status == 200
    equal(passed, limit, f"calls admitted over {routes} together")


@scenario(
    "CC-02",
    "two replicas share one limit",
    "BerriAI/litellm#22002, #10555, #33325, PR#39390, vllm-project/aibrix#2137, maximhq/bifrost#3547, apache/apisix#12482",
    needs={"replica_url": 0, "request_keys": 1, "token_keys": 1},
)
def _(t):
    bases = [t.options.base_url, t.options.replica_url]
    limit = t.options.request_limit
    answers, _ = t.crowd(4 * limit, plays.answer(), t.key("request_keys"), base=bases)
    equal(sum(answer.status == 200 for answer in answers), limit, "calls admitted by both together")
    each = t.limit // 6
    answers, _ = t.crowd(24, plays.answer(usage=(10, each - 10)), t.key("token_keys"), base=bases, max_tokens=each - 10)
    within(
        sum(answer.status == 200 for answer in answers), 4, 6, f"calls of {each} admitted by both together to {t.limit}"
    )


@scenario(
    "CC-03",
    "what one replica held the other gives back",
    "BerriAI/litellm#22002",
    needs=["replica_url", "parallel_keys"],
)
def _(t):
    key = t.key("parallel_keys")
    for base in (t.options.base_url, t.options.replica_url) * 3:
        stream = t.stream(plays.slow(100, 0.02), key, base=base).read(until=lambda stream: stream.chunks)
        equal(stream.status, 200, "status of the stream")
        other = t.options.replica_url if base == t.options.base_url else t.options.base_url
        envelope(t.call(plays.answer(), key, base=other), 429)
        stream.exchange.close()
        t.until(2, "the place is free at the other one", lambda: t.call(plays.answer(), key, base=other).status == 200)
