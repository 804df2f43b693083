"""The balance of one key as an outsider can know it: from `x-ratelimit-remaining-tokens` where it is sent, else from
the largest call that is still admitted. What looking costs is taken out again."""

import time

import plays
from scenario import Failure, Skip, expect

# What the upstream reports for a look.
LOOK = (1, 1)
# Seconds within which a call that has ended must be settled.
SETTLED = 5


class Account:
    """Of a key of the pool `token_keys`, unused so far unless `key` says otherwise."""

    def __init__(self, t, key=None):
        self.t = t
        self.key = key or t.key("token_keys")
        self.look_cost = 0
        self.began = time.monotonic()
        self.start = self.balance()
        limit = t.options.token_limit
        expect(self.start <= limit, f"{self.start} tokens are left of a limit of {limit}")
        if not key and self.start < 0.9 * limit:
            raise Skip(f"the key {self.key} is not fresh: {self.start} of {limit} tokens are left")

    def balance(self):
        answer = self.t.call(plays.answer(usage=LOOK), self.key, max_tokens=1)
        left = answer.headers.number("x-ratelimit-remaining-tokens")
        if answer.status not in (200, 429):
            raise Failure(f"a small call is answered {answer.status}: {answer.text()[:200]}")
        if answer.status == 429:
            return (left or 0) + self.look_cost
        self.look_cost += sum(LOOK)
        # The look's own hold is in `left` each time, so it cancels out in a difference.
        return self.largest_admitted() if left is None else left + self.look_cost - sum(LOOK)

    def largest_admitted(self):
        low, high = 0, 2 * self.t.options.token_limit
        while high - low > 1:
            middle = (low + high) // 2
            if self.t.call(plays.answer(usage=LOOK), self.key, max_tokens=middle).status == 200:
                self.look_cost += sum(LOOK)
                low = middle
            else:
                high = middle
        expect(low < 2 * self.t.options.token_limit - 1, "a call of twice the limit is admitted: no limit is in force")
        return low + self.look_cost

    def refilled(self):
        """At most so many tokens have come back by the clock alone since the account was opened."""
        return 1 + self.t.options.token_limit * (time.monotonic() - self.began) / self.t.options.token_period

    def charges(self, low, high=None):
        """The charge since the start must come to lie between `low` and `high`, which must then be so no later."""
        high = low if high is None else high
        end = time.monotonic() + SETTLED
        while True:
            charged = self.start - self.balance()
            if low - self.refilled() <= charged <= high + 1:
                return charged
            right = f"{low:g}" if high == low else f"{low:g} to {high:g}"
            expect(time.monotonic() < end, f"{charged:g} tokens are charged, right is {right}")
            time.sleep(0.1)

    def restart(self):
        """Charges count from here."""
        self.start, self.began = self.balance(), time.monotonic()
