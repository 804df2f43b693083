"""openai-python meets our errors and our limits: the classes it raises, the codes, and its own retry.

arguments: the gateway's base URL with /v1"""

import sys
import time

import openai
from checks import check, equal, raises, run

BASE = sys.argv[1]
MODEL = "smollm2"
seen = []  # the status and headers of each answer, retries included


def client(key, retries=0):
    recorder = openai.DefaultHttpxClient(event_hooks={"response": [lambda r: seen.append((r.status_code, r.headers))]})
    return openai.OpenAI(base_url=BASE, api_key=key, max_retries=retries, timeout=60, http_client=recorder)


def chat(key="sk-free", retries=0, **fields):
    seen.clear()
    fields = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **fields}
    return client(key, retries).chat.completions.create(**fields)


@check("a wrong key is an AuthenticationError")
def _():
    equal(raises(openai.AuthenticationError, lambda: chat("sk-wrong")).code, "invalid_api_key")


@check("an unknown model is a NotFoundError")
def _():
    equal(raises(openai.NotFoundError, lambda: chat(model="gpt-unknown")).code, "model_not_found")


@check("a prompt longer than the context is a BadRequestError, streamed or not")
def _():
    long = [{"role": "user", "content": "word " * 20_000}]
    for stream in (False, True):
        error = raises(openai.BadRequestError, lambda: chat(messages=long, stream=stream))
        equal(error.code, "context_length_exceeded")


@check("wrong types and absurd numbers are BadRequestErrors that name the field")
def _():
    wrong = [
        ("temperature", "hot"),
        ("max_tokens", -5),
        ("max_tokens", 2.5),
        ("max_tokens", "50"),
        ("max_tokens", True),
        ("max_tokens", 2**64),
        ("n", 0),
        ("messages", {"role": "user"}),
        ("top_p", 7),
    ]
    for field, value in wrong:
        error = raises(openai.BadRequestError, lambda: chat(**{field: value}))
        equal(error.param, field, f"{field}={value!r}: {error.message}")


@check("a refused call says who refused, what was needed, and when it fits")
def _():
    chat("sk-message")
    error = raises(openai.RateLimitError, lambda: chat("sk-message"))
    equal(error.code, "rate_limit_exceeded")
    for word in ("user", "needed", "left"):
        assert word in error.message, error.message
    status, headers = seen[-1]
    equal(status, 429)
    assert 0 < int(headers["retry-after-ms"]) <= 60_000, headers
    assert int(headers["retry-after"]) >= 1, headers
    equal(headers["x-ratelimit-remaining-requests"], "0")


@check("its retry waits as long as we said, and then succeeds at the first attempt")
def _():
    chat("sk-paced")
    began = time.monotonic()
    chat("sk-paced", retries=2)
    took = time.monotonic() - began
    equal([status for status, _ in seen], [429, 200])
    promised = int(seen[0][1]["retry-after-ms"]) / 1000
    assert promised <= took < promised + 2, f"promised {promised} s, took {took} s"


@check("a budget that ends with the day is not retried")
def _():
    chat("sk-daily")
    began = time.monotonic()
    error = raises(openai.RateLimitError, lambda: chat("sk-daily", retries=2))
    equal(error.code, "insufficient_quota")
    equal([status for status, _ in seen], [429])
    assert time.monotonic() - began < 2, "the client waited"


@check("what can never fit is refused at once, and not retried")
def _():
    error = raises(openai.RateLimitError, lambda: chat("sk-small", retries=2, max_tokens=1000))
    equal(error.code, "request_too_large")
    equal([status for status, _ in seen], [429])
    assert "retry-after" not in seen[0][1], "a retry cannot help"


@check("an error before the first event of a stream is a real error")
def _():
    chat("sk-stream")
    equal(raises(openai.RateLimitError, lambda: chat("sk-stream", stream=True)).status_code, 429)


@check("a stream that a budget ends has text, a finish, the usage that was asked for, and no error")
def _():
    messages = [{"role": "user", "content": "Count from 1 to 1000, one number per line."}]
    # Without a cap: the engine knows no end before its context's, and the budget has 80 tokens.
    fields = {"model": MODEL, "messages": messages, "temperature": 0, "stream_options": {"include_usage": True}}
    chunks = list(client("sk-cut").chat.completions.create(stream=True, **fields))
    for chunk in chunks:
        equal((chunk.object, chunk.id), ("chat.completion.chunk", chunks[0].id))
    equal([choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason], ["length"])
    usage = chunks[-1].usage
    assert 80 < usage.completion_tokens <= 84, usage
    equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
    equal(raises(openai.RateLimitError, lambda: chat("sk-cut")).code, "insufficient_quota")


if __name__ == "__main__":
    run()
