"""What a scenario holds in its hands: the gateway under test, keys nobody has used, the scripted upstream, and calls of
every kind. What a scenario opens is closed when it ends."""

import json
import threading
import time
from urllib.parse import urlsplit

import http1
from events import Streamed
from plays import held
from scenario import Failure, Skip, expect
from upstream import Script


class Context:
    def __init__(self, options, upstream, pools):
        self.options = options
        self.upstream = upstream
        self.pools = pools
        self.opened = []
        self.gates = []

    def close(self):
        for gate in self.gates:
            gate.set()
        for exchange in self.opened:
            exchange.close()

    # ---- what was configured

    def key(self, pool):
        """A key of the pool that no scenario has used."""
        return self.pools.take(pool)

    @property
    def limit(self):
        """Tokens of a token key."""
        return self.options.token_limit

    @property
    def slow_model(self):
        """A model that a gateway cannot have learned to be instant, for what it charges by the time that passed."""
        return self.options.slow_model or self.options.model

    # ---- scripts

    def script(self, play):
        return play if isinstance(play, Script) else self.upstream.script(play)

    def gate(self):
        gate = threading.Event()
        self.gates.append(gate)
        return gate

    # ---- calls

    def open(
        self, play=None, key=None, path="/chat/completions", base=None, raw=None, headers=None, method="POST", **fields
    ):
        """Sends a call and returns when its status is there. `play`: a play or a script; `raw`: the body as bytes."""
        base = (base or self.options.base_url).rstrip("/")
        if raw is None:
            raw = json.dumps(self.body(play, path, fields), ensure_ascii=False).encode()
        if headers is None:
            headers = [("Authorization", f"Bearer {key or self.options.key}"), ("Content-Type", "application/json")]
        if not any(name.lower() in ("content-length", "transfer-encoding") for name, _ in headers) and method != "GET":
            headers = [*headers, ("Content-Length", len(raw))]
        parts = urlsplit(base)
        request = http1.head(method, parts.path + path, parts.netloc, headers) + (b"" if method == "GET" else raw)
        return self.exchange(request, base)

    def exchange(self, request, base=None):
        exchange = http1.Exchange(base or self.options.base_url, request, self.options.patience)
        self.opened.append(exchange)
        return exchange

    def body(self, play, path, fields):
        """The call's fields. The mark of its script goes into the prompt: where `fields` have one, in place of `@mark`
        in it, or, if it is no text, into `user`."""
        mark = self.script(play).mark if play else ""
        prompts = {"chat/completions": "messages", "completions": "prompt", "embeddings": "input"}
        prompt = prompts.get(path.strip("/").removeprefix("v1/"), "messages")
        model = self.options.embedding_model if path.endswith("embeddings") else self.options.model
        body = {"model": model}
        if prompt not in fields:
            said = f"Say hello. {mark}"
            body[prompt] = [{"role": "user", "content": said}] if prompt == "messages" else said
        text = json.dumps(fields)
        if "@mark" in text:
            fields = json.loads(text.replace("@mark", mark))
        elif prompt in fields and mark:
            body["user"] = mark
        return {**body, **fields}

    def call(self, play=None, key=None, **more):
        """A call whose answer is read whole."""
        return self.open(play, key, **more).read()

    def stream(self, play=None, key=None, **more):
        """A streaming call: its head is there, its events are the caller's to read."""
        return Streamed(self.open(play, key, stream=True, **more))

    def get(self, path, key=None, base=None):
        return self.open(key=key, path=path, base=base, raw=b"", method="GET").read()

    def together(self, count, call):
        """`call(number)` in so many threads at once, and what each returned. The first failure is raised."""
        results = [None] * count
        start = threading.Barrier(count)

        def run(number):
            start.wait()
            try:
                results[number] = call(number)
            except Exception as error:  # Raised again below, in the scenario's own thread.
                results[number] = error

        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    def crowd(self, count, play, key=None, settle=4.0, **more):
        """`count` calls at once, all held at the upstream until each has reached it or has been answered. Returns the
        answers and the script. A gateway that makes calls wait is not held up for longer than `settle`."""
        gate = self.gate()
        script = self.script(held(gate, play))
        answered = []

        def one(number):
            keys = key if isinstance(key, list) else [key]
            bases = more.get("base")
            base = bases[number % len(bases)] if isinstance(bases, list) else bases
            answer = self.call(script, keys[number % len(keys)], **{**more, "base": base})
            answered.append(number)
            return answer

        opener = threading.Thread(target=self._open_when, args=(gate, script, answered, count, settle), daemon=True)
        opener.start()
        return self.together(count, one), script

    def _open_when(self, gate, script, answered, count, settle):
        moved, seen = time.monotonic(), -1
        while time.monotonic() < moved + settle and seen < count:
            if len(script.calls) + len(answered) != seen:
                moved, seen = time.monotonic(), len(script.calls) + len(answered)
            time.sleep(0.01)
        gate.set()

    # ---- waiting

    def until(self, seconds, what, look):
        """What `look()` returns once it is true, looked at until the time is over."""
        end = time.monotonic() + seconds
        while True:
            seen = look()
            if seen:
                return seen
            expect(time.monotonic() < end, f"not within {seconds:g} s: {what}")
            time.sleep(0.05)

    def run_hook(self, name):
        """Runs a command of the configuration, e.g. the one that restarts the gateway."""
        command = getattr(self.options, name)
        if not command:
            raise Skip(f"needs --{name.replace('_', '-')}")
        command()


def envelope(answer, status, code=None):
    """The error of an answer, which must have OpenAI's shape."""
    statuses = status if isinstance(status, tuple) else (status,)
    right = " or ".join(map(str, statuses))
    expect(answer.status in statuses, f"status {answer.status}, right is {right}; body: {answer.text()[:200]}")
    kind = answer.headers.get("content-type", "")
    expect(
        kind.lower().startswith("application/json"), f"status {answer.status} with content type {kind!r}, right is JSON"
    )
    body = answer.json()
    error = body.get("error") if isinstance(body, dict) else None
    if (
        not isinstance(error, dict)
        or not isinstance(error.get("message"), str)
        or not isinstance(error.get("type"), str)
    ):
        raise Failure(
            f'status {answer.status}: not {{"error": {{"message", "type", "param", "code"}}}}: {answer.text()[:200]}'
        )
    missing = [name for name in ("param", "code") if name not in error]
    expect(not missing, f"the error has no field {missing}: {answer.text()[:200]}")
    if code:
        codes = code if isinstance(code, tuple) else (code,)
        expect(error["code"] in codes, f"error code {error['code']!r}, right is {' or '.join(codes)}")
    return error
