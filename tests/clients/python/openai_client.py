"""openai-python against a gateway in front of the engine with SmolLM2: only the base URL differs from its normal use.

arguments: the gateway's base URL with /v1, the engine's URL without it, the folder of golden files"""

import asyncio
import json
import pathlib
import sys
import urllib.request

import openai
from checks import check, equal, run

BASE, ENGINE, GOLDEN = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
MODEL = "smollm2"
ASK = [{"role": "user", "content": "Name the planets of the solar system."}]
client = openai.OpenAI(base_url=BASE, api_key="sk-free", max_retries=0, timeout=60)


def chat(**fields):
    """A greedy answer of at most 24 tokens, unless the fields say otherwise."""
    cap = {} if "max_completion_tokens" in fields else {"max_tokens": 24}
    return client.chat.completions.create(**{"model": MODEL, "messages": ASK, "temperature": 0, **cap, **fields})


def streamed(**fields):
    """The text, the finish reasons and all chunks of a streamed answer."""
    chunks = list(chat(stream=True, **fields))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    text = "".join(choice.delta.content or "" for choice in choices)
    return text, [choice.finish_reason for choice in choices if choice.finish_reason], chunks


def count_by_engine(text):
    body = json.dumps({"model": MODEL, "prompt": text, "add_special_tokens": False}).encode()
    request = urllib.request.Request(ENGINE + "/tokenize", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["count"]


@check("models are listed, and one can be retrieved")
def _():
    equal([model.id for model in client.models.list()], [MODEL])
    equal(client.models.retrieve(MODEL).object, "model")


@check("a chat has text, a role, a finish reason and the model's name")
def _():
    answer = chat()
    choice = answer.choices[0]
    assert choice.message.content.strip(), "an empty answer"
    equal((choice.message.role, choice.finish_reason, answer.object), ("assistant", "length", "chat.completion"))
    equal(answer.model, MODEL)


@check("prompt tokens equal the golden chat template's, to the token")
def _():
    items = json.loads((GOLDEN / "smollm2_chat_template.json").read_text())["items"]
    # An item with a note holds control tokens in the user's text, which we never parse.
    items = [item for item in items if "note" not in item and item["add_generation_prompt"]]
    assert len(items) >= 3, "the golden file has lost its items"
    for item in items:
        usage = chat(messages=item["messages"], max_tokens=1).usage
        equal(usage.prompt_tokens, len(item["ids"]), item["id"])


@check("completion tokens equal the cap when the answer is cut, and the engine's own count of the text")
def _():
    for cap in (1, 7, 24):
        answer = chat(max_tokens=cap)
        equal(answer.choices[0].finish_reason, "length")
        equal(answer.usage.completion_tokens, cap)
        equal(count_by_engine(answer.choices[0].message.content), cap, "count of the text")
        equal(answer.usage.total_tokens, answer.usage.prompt_tokens + cap)


@check("an answer that ends by itself counts its text and the end token")
def _():
    answer = chat(messages=[{"role": "user", "content": "What is 2+2?"}], max_tokens=200)
    equal(answer.choices[0].finish_reason, "stop")
    equal(answer.usage.completion_tokens, count_by_engine(answer.choices[0].message.content) + 1)


@check("a stream gives the same text as one answer, in more than one piece")
def _():
    text, reasons, chunks = streamed()
    equal(text, chat().choices[0].message.content)
    equal(reasons, ["length"])
    equal(chunks[0].choices[0].delta.role, "assistant")
    assert len(chunks) > 8, f"{len(chunks)} chunks for 24 tokens"


@check("a stream has no usage unless it was asked for")
def _():
    for fields in ({}, {"stream_options": {"include_usage": False}}):
        _, _, chunks = streamed(**fields)
        assert all(chunk.choices for chunk in chunks), "a chunk without choices"
        assert all(chunk.usage is None for chunk in chunks), "usage that nobody asked for"


@check("with include_usage the last chunk, and only it, has usage and no choices")
def _():
    text, _, chunks = streamed(stream_options={"include_usage": True})
    equal([len(chunk.choices) for chunk in chunks].count(0), 1)
    equal(chunks[-1].choices, [])
    expected = chat().usage
    usage = chunks[-1].usage
    equal((usage.prompt_tokens, usage.completion_tokens), (expected.prompt_tokens, expected.completion_tokens))
    equal(count_by_engine(text), usage.completion_tokens)


@check("stop ends the text before the stop string, streamed or not")
def _():
    whole = chat(max_tokens=48).choices[0].message.content
    middle = whole.split()[len(whole.split()) // 2]
    before = whole[: whole.index(middle)]
    for stop in (middle, [middle], ["never in the text", middle]):
        answer = chat(max_tokens=48, stop=stop)
        equal(answer.choices[0].message.content, before)
        equal(answer.choices[0].finish_reason, "stop")
        text, reasons, _ = streamed(max_tokens=48, stop=stop)
        equal((text, reasons), (before, ["stop"]))


@check("max_completion_tokens caps like max_tokens")
def _():
    answer = chat(max_completion_tokens=5)
    equal((answer.usage.completion_tokens, answer.choices[0].finish_reason), (5, "length"))
    equal(answer.choices[0].message.content, chat(max_tokens=5).choices[0].message.content)


@check("temperature 0 answers the same each time")
def _():
    equal(len({chat().choices[0].message.content for _ in range(3)}), 1)


@check("one seed gives one text, another seed another, streamed or not")
def _():
    def drawn(seed):
        return chat(temperature=1.0, seed=seed).choices[0].message.content

    equal(drawn(7), drawn(7))
    assert len({drawn(seed) for seed in (7, 8, 9)}) > 1, "three seeds, one text"
    equal(streamed(temperature=1.0, seed=7)[0], drawn(7))


@check("top_p near zero leaves only the likeliest token")
def _():
    equal(chat(temperature=1.0, top_p=1e-6, seed=3).choices[0].message.content, chat().choices[0].message.content)


@check("parallel calls of the async client each get the answer they would get alone")
def _():
    questions = ["Name a colour.", "What is the capital of France?", "Count to five.", "Say hello."]

    def message(question):
        return [{"role": "user", "content": question}]

    async def together():
        parallel = openai.AsyncOpenAI(base_url=BASE, api_key="sk-free", max_retries=0, timeout=60)
        calls = (
            parallel.chat.completions.create(model=MODEL, messages=message(q), temperature=0, max_tokens=16)
            for q in questions
        )
        return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]

    alone = [chat(messages=message(q), max_tokens=16).choices[0].message.content for q in questions]
    equal(asyncio.run(together()), alone)


@check("plain completions continue a text")
def _():
    answer = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0)
    assert "Paris" in answer.choices[0].text, answer.choices[0].text
    equal(answer.usage.prompt_tokens, count_by_engine("The capital of France is"))


if __name__ == "__main__":
    run()
