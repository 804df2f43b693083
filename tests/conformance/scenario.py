"""What a scenario is, and the two ways in which it ends early. The scenarios themselves are in `scenarios/`."""

SCENARIOS = []


class Failure(Exception):
    """The gateway did the wrong thing; the text says what, and what would have been right."""


class Skip(Exception):
    """The scenario cannot be judged here; the text says what is missing."""


class Scenario:
    def __init__(self, id, title, sources, needs, alone, play):
        self.id = id
        self.title = title
        self.sources = sources
        # Option -> how many of its keys the scenario uses up; 0 for what is only there or not.
        self.needs = needs
        # Stops or restarts something that all scenarios share, or judges times that others would lengthen.
        self.alone = alone
        self.play = play

    @property
    def subject(self):
        return self.play.__module__.rpartition(".")[2]


def scenario(id, title, sources, needs=None, alone=False):
    """Registers a function of one argument, the context `t`. `needs` names options; a list means one key of each."""
    if not isinstance(needs, dict):
        needs = {name: 1 if name.endswith("_keys") else 0 for name in needs or ()}

    def register(play):
        if any(known.id == id for known in SCENARIOS):
            raise ValueError(f"two scenarios are called {id}")
        SCENARIOS.append(Scenario(id, title, sources, needs, alone, play))
        return play

    return register


def expect(holds, message):
    if not holds:
        raise Failure(message)


def equal(got, right, what):
    expect(got == right, f"{what}: {short(got)}, right is {short(right)}")


def within(got, low, high, what):
    expect(low <= got <= high, f"{what}: {got:g}, right is {low:g} to {high:g}")


def inner(value, *path):
    """What stands at a path of keys and numbers in an answer, which must have it."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            raise Failure(f"no {'.'.join(map(str, path))} in the answer {short(value)}") from None
    return value


def short(value, limit=300):
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[:limit] + "..."
