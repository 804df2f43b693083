"""Keys: who may call, and where a key may go."""

import json

import plays
from context import envelope
from scenario import equal, expect, scenario


def call_with(t, script, authorization):
    """A chat with these headers of authorization and no other."""
    raw = json.dumps(t.body(script, "/chat/completions", {})).encode()
    return t.open(raw=raw, headers=[*authorization, ("Content-Type", "application/json")]).read()


@scenario(
    "KA-01",
    "the scheme of the key counts in any case and spacing; the key itself exactly",
    "istio/istio#22608, upstash/context7#3188, jetkvm/cloud-api#85",
)
def _(t):
    key = t.options.key
    for value in (f"bearer {key}", f"BEARER  {key}", f"Bearer {key} "):
        equal(call_with(t, plays.answer(), [("Authorization", value)]).status, 200, f"status for {value!r}")
    for wrong in (key.swapcase(), key + "x", key[:-1]):
        envelope(call_with(t, plays.answer(), [("Authorization", f"Bearer {wrong}")]), 401)


@scenario(
    "KA-02",
    "without a key that is known nothing reaches the upstream",
    "vllm-project/vllm#12886, ray-project/ray#64833",
)
def _(t):
    script = t.script(plays.answer())
    for authorization in (
        [],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer nobody")],
        [("Authorization", "Basic eDp5")],
    ):
        envelope(call_with(t, script, authorization), 401)
    equal(len(script.calls), 0, "calls at the upstream")


@scenario("KA-03", "the caller's key and cookies stay with the gateway", "istio/istio#22608, jetkvm/cloud-api#85")
def _(t):
    script = t.script(plays.answer())
    headers = [("Authorization", f"Bearer {t.options.key}"), ("Cookie", "session=secret")]
    equal(call_with(t, script, headers).status, 200, "status")
    head = script.first.head
    expect(t.options.key not in head, "the caller's key reached the upstream")
    expect("session=secret" not in head, "the caller's cookie reached the upstream")
