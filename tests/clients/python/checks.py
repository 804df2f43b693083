"""A check is a function named by a sentence. All of them run; the exit status says whether all passed."""

import sys
import time
import traceback

_checks = []


def check(sentence):
    def register(function):
        _checks.append((sentence, function))
        return function

    return register


def run():
    failed = 0
    for sentence, function in _checks:
        began = time.monotonic()
        try:
            function()
            verdict = "PASS"
        except Exception:
            traceback.print_exc(file=sys.stdout)
            verdict, failed = "FAIL", failed + 1
        print(f"{verdict} {sentence} ({time.monotonic() - began:.2f} s)", flush=True)
    print(f"{len(_checks) - failed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed or not _checks else 0)


def equal(got, expected, what=""):
    assert got == expected, f"{what}: got {got!r}, expected {expected!r}"


def raises(kind, call):
    """The exception of exactly this class, which `call` must raise."""
    try:
        call()
    except kind as error:
        assert type(error) is kind, f"raised {type(error)}"
        return error
    raise AssertionError(f"{kind.__name__} was not raised")
