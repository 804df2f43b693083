"""Plays for the scripted upstream: each makes a function of a call and a reply. By default they answer as a well-behaved
provider does, whole or streamed as the call asks; arguments say in what they differ."""

from upstream import encode

# More than any scenario takes: a play that nobody ends does not last for ever.
LONG = 60


def usage_of(pair):
    prompt, completion = pair
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def ordinary(call, reply):
    """For what no scenario asked: probes of the gateway's own, and lists of models."""
    if call.method == "GET":
        models = [{"id": "scripted", "object": "model", "created": 1700000000, "owned_by": "scripted"}]
        return reply.whole({"object": "list", "data": models})
    answer()(call, reply)


def answer(text="Hello.", usage=(10, 5), usage_on="own", choices=1, headers=(), finish=True, done=True):
    """`usage` None reports none. `usage_on`, for streams: "own" chunk, "finish" chunk, or "every" chunk as it grows."""

    def play(call, reply):
        body = call.json()
        if call.path.endswith("/embeddings"):
            reply.whole(embedding(body, usage), headers=headers)
        elif body.get("stream"):
            reply.begin(headers)
            for payload in chunks(call, text, usage, usage_on, choices, finish):
                reply.event(payload)
            if done:
                reply.write(b"data: [DONE]\n\n")
            reply.end()
        else:
            reply.whole(whole(call, text, usage, choices), headers=headers)

    return play


def envelope(call, object, model="scripted"):
    return {
        "id": "chatcmpl-scripted",
        "object": object,
        "created": 1700000000,
        "model": call.json().get("model", model),
    }


def whole(call, text, usage, choices=1):
    legacy = not call.path.endswith("/chat/completions")
    said = {"text": text} if legacy else {"message": {"role": "assistant", "content": text}}
    body = envelope(call, "text_completion" if legacy else "chat.completion")
    body["choices"] = [{"index": index, **said, "finish_reason": "stop"} for index in range(choices)]
    if usage:
        body["usage"] = usage_of(usage)
    return body


def chunk(call, delta, index=0, finish=None, **more):
    legacy = not call.path.endswith("/chat/completions")
    said = {"text": delta.get("content", "")} if legacy else {"delta": delta}
    body = envelope(call, "text_completion" if legacy else "chat.completion.chunk")
    body["choices"] = [{"index": index, **said, "finish_reason": finish}]
    return {**body, **more}


def chunks(call, text, usage, usage_on="own", choices=1, finish=True):
    """The payloads of a streamed answer, a word each, all choices in turns."""
    words = text.split(" ")
    for place, word in enumerate(words):
        spaced = word if place == 0 else " " + word
        for index in range(choices):
            so_far = {"usage": usage_of((usage[0], min(usage[1], place + 1)))} if usage and usage_on == "every" else {}
            yield chunk(call, {"content": spaced}, index, **so_far)
    if finish:
        for index in range(choices):
            last = {"usage": usage_of(usage)} if usage and usage_on in ("finish", "every") else {}
            yield chunk(call, {}, index, "stop", **last)
    asked = (call.json().get("stream_options") or {}).get("include_usage")
    if usage and usage_on == "own" and asked:
        yield usage_chunk(call, usage)


def usage_chunk(call, usage):
    return {**envelope(call, "chat.completion.chunk"), "choices": [], "usage": usage_of(usage)}


def embedding(body, usage):
    inputs = body.get("input")
    many = len(inputs) if isinstance(inputs, list) and inputs and not isinstance(inputs[0], int) else 1
    # 1.0 and -0.5 as little-endian floats.
    vector = "AACAPwAAAL8=" if body.get("encoding_format") == "base64" else [1.0, -0.5]
    data = [{"object": "embedding", "index": index, "embedding": vector} for index in range(many)]
    answer = {"object": "list", "model": body.get("model"), "data": data}
    if usage:
        answer["usage"] = {"prompt_tokens": usage[0], "total_tokens": usage[0]}
    return answer


def events(payloads, headers=()):
    """A stream of these payloads, as they are; `[DONE]` is theirs to send. Text is sent as raw bytes."""

    def play(call, reply):
        reply.begin(headers)
        for payload in payloads(call) if callable(payloads) else payloads:
            reply.write(payload if isinstance(payload, bytes) else encode(payload))
        reply.end()

    return play


def cut(size, stream):
    """The bytes of `stream(call)` in pieces of `size`, one packet each."""

    def play(call, reply):
        data = stream(call)
        reply.begin()
        for at in range(0, len(data), size):
            reply.write(data[at : at + size])
        reply.end()

    return play


def slow(words, gap, usage=None, end="done"):
    """A word every `gap` seconds, each one token. `end`: "done", "reset", "close" (in mid-stream), or "silence"."""

    def play(call, reply):
        reply.begin()
        for place in range(words):
            reply.event(chunk(call, {"content": " word" if place else "word"}))
            reply.wait(gap)
        if end == "silence":
            reply.wait(LONG)
        if end in ("reset", "close"):
            # A reset drops what is still on its way, and that was to arrive.
            reply.wait(0.3)
            return getattr(reply, end)()
        reply.event(chunk(call, {}, finish="stop"))
        if usage and (call.json().get("stream_options") or {}).get("include_usage"):
            reply.event(usage_chunk(call, usage))
        reply.write(b"data: [DONE]\n\n")
        reply.end()

    return play


def held(gate, play):
    """`play` once the gate is open."""

    def wait(call, reply):
        reply.wait(LONG, gate)
        play(call, reply)

    return wait


def error(status, code="scripted", message="scripted failure", param=None, headers=(), kind="invalid_request_error"):
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return lambda call, reply: reply.whole(body, status, headers)


def raw(body, status=200, kind="text/html"):
    return lambda call, reply: reply.whole(body, status, kind=kind)


def hang(call, reply):
    reply.wait(LONG)


def reset(call, reply):
    reply.reset()


def in_turn(*plays):
    """The first call gets the first play, and so on; the last one stays."""
    left = list(plays)

    def play(call, reply):
        (left.pop(0) if len(left) > 1 else left[0])(call, reply)

    return play
