"""What is in a request or an answer passes through: a gateway changes the model's name and what it says it changes."""

import base64
import struct

import plays
from scenario import equal, expect, inner, scenario


CHANGED = ("model", "stream_options")


def at_the_upstream(t, path="/chat/completions", **fields):
    """The body that the upstream got for these fields, and the one that was sent."""
    script = t.script(plays.answer())
    answer = t.call(script, path=path, **fields)
    equal(answer.status, 200, f"status ({answer.text()[:200]})")
    return script.first.json(), t.body(script, path, fields)


def unchanged(got, sent):
    """Deep equality but for what a gateway may change. Returns both without that."""
    got, sent = ({key: value for key, value in body.items() if key not in CHANGED} for body in (got, sent))
    equal(got, sent, "the body at the upstream")
    return got, sent


def order(value):
    if isinstance(value, dict):
        return [(key, order(inner)) for key, inner in value.items()]
    return [order(inner) for inner in value] if isinstance(value, list) else None


@scenario(
    "WC-01",
    "unknown fields of a request reach the upstream at any depth, in their order",
    "mozilla-ai/any-llm#1106, vllm-project/semantic-router#3573, maximhq/bifrost#5764, sgl-project/sglang#8500",
)
def _(t):
    fields = {
        "top_k": 20,
        "messages": [
            {"role": "user", "content": "héllo 你好 🌍 \u2028 @mark", "cache_control": {"type": "ephemeral"}},
            {"content": "keys in another order", "role": "user"},
        ],
        "chat_template_kwargs": {"enable_thinking": False},
        "extra_body": {"google": {"x": 1}, "a": [1.5, None, {"z": 1, "y": 2}]},
    }
    for model in filter(None, (t.options.model, t.options.alias)):
        for stream in (False, True):
            got, sent = unchanged(*at_the_upstream(t, model=model, stream=stream, **fields))
            # The order too: an upstream's prompt cache works on bytes.
            equal(order(got), order(sent), "the order of keys at the upstream")


@scenario(
    "WC-08",
    "max_tokens and max_completion_tokens keep their names; the upstream's refusal keeps param and code",
    "FoundationAgents/MetaGPT#1709, langgenius/dify-official-plugins#2425, HKUDS/nanobot#2464, SilasMarvin/lsp-ai#95",
)
def _(t):
    for cap in ("max_tokens", "max_completion_tokens"):
        got, sent = at_the_upstream(t, **{cap: 50})
        equal(sorted(got), sorted(sent), "fields at the upstream")
    refusal = plays.error(400, "unsupported_parameter", "use max_completion_tokens", "max_tokens")
    for stream in (False, True):
        answer = t.call(refusal, max_tokens=50, stream=stream)
        equal(answer.status, 400, "status")
        error = inner(answer.json(), "error")
        equal((inner(error, "param"), inner(error, "code")), ("max_tokens", "unsupported_parameter"), "param and code")


@scenario(
    "EM-01",
    "embeddings come in the encoding that was asked for",
    "mem0ai/mem0#4057, openai/openai-python#1490, CherryHQ/cherry-studio#14111, volcengine/OpenViking#2092",
    needs=["embedding_model"],
)
def _(t):
    def vector(**fields):
        answer = t.call(plays.answer(usage=(3, 0)), path="/embeddings", **fields)
        equal(answer.status, 200, f"status ({answer.text()[:200]})")
        return inner(answer.json(), "data", 0, "embedding")

    packed = vector(encoding_format="base64")
    expect(isinstance(packed, str), "base64 was asked for, numbers came")
    equal(list(struct.unpack("<2f", base64.b64decode(packed))), vector(encoding_format="float"), "the vector")


@scenario(
    "EM-02",
    "embeddings of token ids reach the upstream as they are",
    "BerriAI/litellm#10113, langchain-ai/langchain#30574, huggingface/text-embeddings-inference#273",
    needs=["embedding_model"],
)
def _(t):
    ids = [[57668, 53901], [1, 2, 3]]
    unchanged(*at_the_upstream(t, path="/embeddings", input=ids, encoding_format="base64"))


@scenario(
    "MM-02",
    "audio, files and unknown parts of a message pass unchanged",
    "RapidFireAI/rapidfireai#237, mistralai/client-python#502",
)
def _(t):
    audio = {"type": "input_audio", "input_audio": {"data": "A" * 100_000, "format": "wav"}}
    file = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64," + "A" * 30_000}}
    for part in (
        audio,
        file,
        {"type": "video_url", "video_url": {"url": "http://x.test/v"}},
        {"type": "future_part", "x": 1},
    ):
        content = [{"type": "text", "text": "what is this? @mark"}, part]
        unchanged(*at_the_upstream(t, messages=[{"role": "user", "content": content}]))


@scenario(
    "FT-01",
    "two tool calls of one stream stay two, whether or not the upstream numbers them",
    "vercel/ai#7238, ollama/ollama#7881, openai/openai-python#2806, EricLBuehler/mistral.rs#1507",
)
def _(t):
    for numbered in (True, False):

        def payloads(call):
            for index, name in enumerate(("alpha", "beta")):
                for field in ({"name": name, "arguments": ""}, {"arguments": '{"x":'}, {"arguments": f"{index}}}"}):
                    piece = {"id": f"call_{name}", "type": "function", "function": field}
                    piece = {"index": index, **piece} if numbered else piece
                    yield plays.chunk(call, {"tool_calls": [piece]})
            yield plays.chunk(call, {}, finish="tool_calls")
            yield b"data: [DONE]\n\n"

        stream = t.stream(plays.events(payloads)).read()
        calls = {}
        for choice in stream.choices():
            for piece in (choice.get("delta") or {}).get("tool_calls") or ():
                name = piece.get("id") or f"index {piece.get('index')}"
                calls[name] = calls.get(name, "") + piece["function"].get("arguments", "")
        equal(
            calls, {"call_alpha": '{"x":0}', "call_beta": '{"x":1}'}, f"arguments of the calls (numbered: {numbered})"
        )
        equal(stream.finishes(), ["tool_calls"], "finish reasons")


@scenario("LP-02", "chunks without text are not dropped: their logprobs count", "vllm-project/vllm#37795")
def _(t):
    def payloads(call):
        for word in ("a", "", "b", ""):
            chunk = plays.chunk(call, {"content": word} if word else {})
            chunk["choices"][0]["logprobs"] = {"content": [{"token": word, "logprob": -0.1, "top_logprobs": []}]}
            yield chunk
        yield plays.chunk(call, {}, finish="stop")
        yield b"data: [DONE]\n\n"

    stream = t.stream(plays.events(payloads), logprobs=True, top_logprobs=2).read()
    entries = [entry for choice in stream.choices() for entry in (choice.get("logprobs") or {}).get("content") or ()]
    equal(len(entries), 4, "logprob entries")
