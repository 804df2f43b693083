"""What a finished call is charged: what its upstream reports, once, in whatever form it comes; else what was counted."""

import plays
from account import Account
from scenario import equal, scenario

WORDS = " ".join(["word"] * 200)


def finished(t, account, play, stream=False, **fields):
    """A call that ends well."""
    if not stream:
        return equal(t.call(play, account.key, **{"max_tokens": 1000, **fields}).status, 200, "status")
    streamed = t.stream(play, account.key, **{"max_tokens": 1000, **fields}).read()
    equal(
        (streamed.status, streamed.broken, streamed.errors), (200, None, []), "status, breaks and errors of the stream"
    )


@scenario(
    "US-01",
    "prompt and completion are charged, whole or streamed alike, once",
    "BerriAI/litellm#17664, #9577, Kong/kong#14535, alibaba/higress#1080, #1665, envoyproxy/ai-gateway#1754",
    needs={"token_keys": 3},
)
def _(t):
    for stream, options in ((False, {}), (True, {}), (True, {"stream_options": {"include_usage": True}})):
        account = Account(t)
        finished(t, account, plays.answer(usage=(1500, 25)), stream, **options)
        account.charges(1525)


@scenario(
    "US-02",
    "what was held and not used is back when the call ends",
    "BerriAI/litellm#40050, #36926 (a counter of twice the bill)",
    needs={"token_keys": 2},
)
def _(t):
    for stream in (False, True):
        account = Account(t)
        finished(t, account, plays.answer(usage=(20, 200)), stream, max_tokens=t.limit // 2)
        account.charges(220)
        equal(
            t.call(plays.answer(), account.key, max_tokens=t.limit - 500).status, 200, "status of a call of nearly all"
        )


@scenario("US-03", "an explicit zero is a usage", "BerriAI/litellm#37992", needs={"token_keys": 2})
def _(t):
    for stream in (False, True):
        account = Account(t)
        finished(t, account, plays.answer(WORDS, usage=(0, 0)), stream)
        account.charges(0)


@scenario(
    "US-04",
    "usage on the last chunk, or growing on every chunk, is charged once",
    "alibaba/higress#1080, apache/apisix#13662",
    needs={"token_keys": 2},
)
def _(t):
    for place in ("finish", "every"):
        account = Account(t)
        finished(t, account, plays.answer(WORDS, usage=(100, 200), usage_on=place), stream=True)
        account.charges(300)


@scenario(
    "US-05", "without a usage the answer is counted", "Kong/kong#14535, BerriAI/litellm#14457", needs={"token_keys": 2}
)
def _(t):
    for stream in (False, True):
        account = Account(t)
        finished(t, account, plays.answer(WORDS, usage=None), stream)
        # 200 words and a short prompt, by any tokenizer; a count by characters is 250.
        account.charges(180, 400)


@scenario("US-06", "all choices of a call are counted", "Azure OpenAI: n and best_of count", needs=["token_keys"])
def _(t):
    account = Account(t)
    finished(t, account, plays.answer(WORDS, usage=None, choices=3), stream=True, n=3, max_tokens=300)
    account.charges(560, 1100)


@scenario(
    "US-07",
    "embeddings are charged what they report",
    "maximhq/bifrost#2873, BerriAI/litellm PR#27015",
    needs=["token_keys", "embedding_model"],
)
def _(t):
    account = Account(t)
    equal(t.call(plays.answer(usage=(777, 0)), account.key, path="/embeddings").status, 200, "status")
    account.charges(777)


@scenario(
    "US-08",
    "what is counted is the whole text, wherever its events are cut",
    "BerriAI/litellm#14457",
    needs=["token_keys"],
)
def _(t):
    def stream(call):
        return b"".join(plays.encode(chunk) for chunk in plays.chunks(call, WORDS, None)) + b"data: [DONE]\n\n"

    account = Account(t)
    finished(t, account, plays.cut(1000, stream), stream=True)
    account.charges(180, 400)
