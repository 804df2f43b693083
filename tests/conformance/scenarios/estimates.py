"""What a call is held at before its use is known: neither absurdly much nor nothing, whatever it consists of."""

import base64
import json
import struct
import zlib

import plays
from account import Account
from context import envelope
from scenario import equal, expect, scenario


def png(side):
    """A picture of noise, so that it is as large as pictures are: about 3 bytes a pixel."""

    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    state, row = 12345, bytearray()
    for _ in range(side * 3):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        row.append(state >> 16 & 255)
    # The same row each time: not compressed, so its size does not depend on it.
    rows = b"".join(b"\x00" + bytes(row) for _ in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(rows, 0)) + part(b"IEND", b"")


@scenario(
    "TC-01",
    "an image is held at its size in pixels, not at the length of its text; a URL is not fetched",
    "BerriAI/litellm#32865, #32891, BlockRunAI/Franklin#52, google-gemini/gemini-cli#17923, NVIDIA/nvcf#1316",
    needs=["token_keys"],
)
def _(t):
    key = t.key("token_keys")
    picture = "data:image/png;base64," + base64.b64encode(png(512)).decode()
    fetched = t.script(plays.ordinary)
    remote = f"http://127.0.0.1:{t.upstream.port}/{fetched.mark}.png"
    for url in (picture, remote):
        for detail in ({}, {"detail": "low"}, {"detail": "high"}):
            content = [
                {"type": "text", "text": "what is this? @mark"},
                {"type": "image_url", "image_url": {"url": url, **detail}},
            ]
            script = t.script(plays.answer(usage=(60, 10)))
            answer = t.call(script, key, messages=[{"role": "user", "content": content}], max_tokens=50)
            equal(answer.status, 200, f"status with an image ({detail or 'no detail'}; {answer.text()[:150]})")
    hits = [call.path for call in t.upstream.ordinary.calls if fetched.mark in call.path]
    equal(hits, [], "fetches of the image by the gateway")


@scenario(
    "TC-02",
    "files and audio are not counted as text",
    "mistralai/client-python#502, RapidFireAI/rapidfireai#237",
    needs=["token_keys"],
)
def _(t):
    key = t.key("token_keys")
    data = "QUJD" * 50_000
    file = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64," + data}}
    audio = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    for part in (file, audio, {"type": "future_part", "x": 1}):
        content = [{"type": "text", "text": "what is this? @mark"}, part]
        answer = t.call(
            plays.answer(usage=(40, 5)), key, messages=[{"role": "user", "content": content}], max_tokens=20
        )
        equal(answer.status, 200, f"status with a part {part['type']} ({answer.text()[:150]})")


@scenario("TC-03", "a long prompt is not held at nothing", "BerriAI/litellm#17664", needs=["token_keys"])
def _(t):
    script = t.script(plays.answer())
    long = [{"role": "user", "content": "@mark" + " several ordinary words" * t.limit}]
    envelope(t.call(script, t.key("token_keys"), messages=long, max_tokens=1), (400, 413, 429))
    equal(len(script.calls), 0, "calls at the upstream")


@scenario(
    "TC-04",
    "lists of token ids and of texts are held at their sum",
    "BerriAI/litellm#10113, PR#27015, microsoft/aoai-api-simulator#87",
    needs=["token_keys", "embedding_model"],
)
def _(t):
    key, half = t.key("token_keys"), t.limit // 2 + 200
    script = t.script(plays.answer(usage=(5, 0)))
    for input in ([[1] * half, [2] * half], ["@mark" + " word" * half] * 2):
        what = "lists of ids" if isinstance(input[0], list) else "texts"
        envelope(t.call(script, key, path="/embeddings", input=input), (400, 413, 429))
        equal(
            t.call(script, key, path="/embeddings", input=input[:1]).status,
            200,
            f"status of the first of two {what} alone",
        )
    equal(len(script.calls), 2, "calls at the upstream")


@scenario("TC-05", "of two caps the larger counts", "BerriAI/litellm PR#34223, PR#37001", needs=["token_keys"])
def _(t):
    key = t.key("token_keys")
    script = t.script(plays.answer())
    for caps in ((1, 2 * t.limit), (2 * t.limit, 1)):
        fields = dict(zip(("max_tokens", "max_completion_tokens"), caps))
        envelope(t.call(script, key, **fields), (400, 413, 429))
    equal(len(script.calls), 0, "calls at the upstream")


@scenario(
    "TC-06",
    "n choices are held at n times the cap",
    "Azure OpenAI: the estimate is prompt + max_tokens x best_of",
    needs=["token_keys"],
)
def _(t):
    script = t.script(plays.answer(choices=4))
    envelope(t.call(script, t.key("token_keys"), max_tokens=t.limit // 3, n=4), (400, 413, 429))
    equal(len(script.calls), 0, "calls at the upstream")


@scenario(
    "TC-07", "a key of few tokens can make a call without a cap", "BerriAI/litellm PR#29193", needs=["small_keys"]
)
def _(t):
    answer = t.call(plays.answer(), t.key("small_keys"))
    equal(answer.status, 200, f"status of the first call ({answer.text()[:200]})")


@scenario(
    "QA-03", "no cap is demanded where no tokens are limited", "tensorzero/tensorzero#3648", needs=["request_keys"]
)
def _(t):
    script = t.script(plays.answer())
    answer = t.call(script, t.key("request_keys"))
    equal(answer.status, 200, f"status ({answer.text()[:200]})")
    expect("max_tokens" not in script.first.json(), "the gateway put a cap into the caller's request")


@scenario(
    "QA-08",
    "absurd numbers are refused and change nothing",
    "redis/redis#14826, txpipe/scrolls#149, alicebob/miniredis#361",
    needs=["token_keys"],
)
def _(t):
    account = Account(t)
    script = t.script(plays.answer())
    values = ("9223372036854775807", "18446744073709551615", "1e30", "1e400", "-5", "2.5", '"50"', "true", "[]")
    absurd = [(field, value) for field in ("max_tokens", "max_completion_tokens") for value in values]
    absurd += [("n", value) for value in ("-1", "0", "1e9", '"2"')]
    for field, value in absurd:
        body = json.dumps(t.body(script, "/chat/completions", {field: "@@"})).replace('"@@"', value)
        answer = t.call(key=account.key, raw=body.encode())
        expect(answer.status in (400, 429), f"{field}: {value} is answered {answer.status}, right is 400 or 429")
        envelope(answer, answer.status)
    equal(len(script.calls), 0, "calls at the upstream")
    account.charges(0)
    equal(t.call(plays.answer(), max_tokens=None).status, 200, "status with max_tokens: null")
