"""Clients that leave: the upstream stops, what was produced is charged, the rest and the place are free again."""

import json
import threading
import time
from urllib.parse import urlsplit

import http1
import plays
from account import Account
from scenario import equal, scenario, within


def leaves(t, script, key, leave, after, **fields):
    """A stream whose client leaves after so many chunks. Returns when the upstream has noticed, which it must soon."""
    stream = t.stream(script, key, **fields).read(until=lambda stream: len(stream.chunks) >= after)
    equal(stream.status, 200, "status of the stream")
    left = time.monotonic()
    getattr(stream.exchange, leave)()
    call = script.calls[-1]
    t.until(4, "the upstream's connection is closed", lambda: call.ended)
    equal(call.ended, "left", "how the call ended at the upstream")
    within(call.ended_at - left, -1, 2, "seconds until the upstream is told")
    return stream


@scenario(
    "DC-01",
    "a client that leaves in mid-stream stops the upstream and pays for what there was",
    "BerriAI/litellm#30245, #13774, #9178, #17364, #14457, PR#37558",
    needs={"token_keys": 2},
)
def _(t):
    for leave in ("close", "reset"):
        account = Account(t)
        script = t.script(plays.slow(300, 0.02))
        most = int(t.limit * 0.8)
        stream = leaves(t, script, account.key, leave, 40, max_tokens=most)
        words = len(stream.chunks)
        # The prompt, and what the upstream had sent before it was told.
        account.charges(words * 0.8, words + 150)
        equal(
            t.call(plays.answer(), account.key, max_tokens=most).status, 200, f"status of the same call after a {leave}"
        )


@scenario(
    "DC-02",
    "leaving just before the end does not make an answer free",
    "BerriAI/litellm PR#35098 review",
    needs=["token_keys"],
)
def _(t):
    account = Account(t)
    words, gate = 400, t.gate()

    def all_but_the_end(call, reply):
        reply.begin()
        for _ in range(words):
            reply.event(plays.chunk(call, {"content": " word"}))
        reply.wait(30, gate)

    leaves(t, t.script(all_but_the_end), account.key, "close", words, max_tokens=1000)
    account.charges(words * 0.8, words * 1.5 + 100)


@scenario(
    "DC-03",
    "a client that leaves before the answer stops the upstream and frees the hold",
    "BerriAI/litellm#9178, #17364",
    needs=["token_keys"],
)
def _(t):
    account = Account(t)
    for stream in (False, True):
        script = t.script(plays.hang)
        caller = threading.Thread(target=give_up, args=(t, script, account.key, stream), daemon=True)
        caller.start()
        call = t.until(5, "the call reaches the upstream", lambda: script.calls and script.first)
        t.until(5, "the upstream's connection is closed", lambda: call.ended)
        equal(call.ended, "left", "how the call ended at the upstream")
        caller.join()
    # What was produced unseen may be charged, the cap may not: little time has passed.
    t.until(
        3,
        "most of the hold is free again",
        lambda: t.call(plays.answer(), account.key, max_tokens=int(t.limit * 0.8)).status == 200,
    )


def give_up(t, script, key, stream):
    """Sends a call, waits until it is at the upstream, and goes away without reading."""
    parts = urlsplit(t.options.base_url)
    fields = {"stream": stream, "max_tokens": int(t.limit * 0.4), "model": t.slow_model}
    body = json.dumps(t.body(script, "/chat/completions", fields)).encode()
    headers = [("Authorization", f"Bearer {key}"), ("Content-Type", "application/json"), ("Content-Length", len(body))]
    connection = http1.connect(t.options.base_url, 10)
    connection.sendall(http1.head("POST", parts.path.rstrip("/") + "/chat/completions", parts.netloc, headers) + body)
    end = time.monotonic() + 5
    while not script.calls and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.1)
    connection.close()


@scenario(
    "DC-04",
    "the place of a call is free after any end",
    "BerriAI/litellm#27955, #30020, #34534, #20256, #27639, PR#28160, vllm-project/vllm-ascend PR#10812",
    needs=["parallel_keys"],
)
def _(t):
    key = t.key("parallel_keys")

    def left(leave):
        stream = t.stream(plays.slow(200, 0.02), key).read(until=lambda stream: stream.chunks)
        equal(stream.status, 200, "status of the stream")
        getattr(stream.exchange, leave)()

    def failed(play, stream):
        t.call(play, key, stream=stream)

    ends = [lambda: left("close"), lambda: left("reset")]
    for play in (plays.error(500), plays.error(400), plays.reset, plays.raw(b"no JSON", 200, "application/json")):
        for stream in (False, True):
            ends.append(lambda play=play, stream=stream: failed(play, stream))
    ends.append(lambda: t.call(key=key, raw=b"{"))
    ends.append(lambda: t.stream(plays.slow(3, 0.01, end="reset"), key).read())
    for number, end in enumerate(ends * 2):
        end()
        # A gateway learns of a client that left by writing to it: that may take a moment, not more.
        t.until(2, f"a call is admitted after end {number}", lambda: t.call(plays.answer(), key).status == 200)
