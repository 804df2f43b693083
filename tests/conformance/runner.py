"""Runs scenarios and judges how they end: PASS, FAIL, SKIP, or BROKEN when the suite itself is at fault."""

import concurrent.futures
import fnmatch
import threading
import time
import traceback

from context import Context
from scenario import SCENARIOS, Failure, Skip


class Result:
    def __init__(self, scenario, verdict, reason, seconds):
        self.scenario = scenario
        self.verdict = verdict
        self.reason = reason
        self.seconds = seconds


class Pools:
    """Keys, each handed out once."""

    def __init__(self, options):
        self.left = {name: list(keys) for name, keys in vars(options).items() if name.endswith("_keys") and keys}
        self.lock = threading.Lock()

    def take(self, pool):
        with self.lock:
            if self.left.get(pool):
                return self.left[pool].pop(0)
        raise Skip(f"no unused key is left in --{pool.replace('_', '-')}")


def chosen(patterns):
    def fits(scenario):
        return any(
            fnmatch.fnmatch(scenario.id, pattern)
            or pattern.lower() in scenario.title.lower()
            or pattern == scenario.subject
            for pattern in patterns
        )

    return [scenario for scenario in SCENARIOS if not patterns or fits(scenario)]


def run(scenarios, options, upstream, report):
    """Calls `report(result)` for each as it ends; those that need the gateway for themselves come last."""
    pools = Pools(options)

    def one(scenario):
        result = judge(scenario, Context(options, upstream, pools))
        report(result)
        return result

    together = [scenario for scenario in scenarios if not scenario.alone]
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        results = list(pool.map(one, together))
    return results + [one(scenario) for scenario in scenarios if scenario.alone]


def judge(scenario, context):
    began = time.monotonic()
    missing = [name for name in scenario.needs if not getattr(context.options, name)]
    if missing:
        wanted = ", ".join("--" + name.replace("_", "-") for name in missing)
        return Result(scenario, "SKIP", f"needs {wanted}", 0.0)
    try:
        scenario.play(context)
        verdict, reason = "PASS", ""
    except Failure as failure:
        verdict, reason = "FAIL", str(failure)
    except Skip as skip:
        verdict, reason = "SKIP", str(skip)
    except Exception:
        # Not the gateway's fault as far as we know: never counted for or against it.
        verdict, reason = "BROKEN", traceback.format_exc()
    finally:
        context.close()
    return Result(scenario, verdict, reason, time.monotonic() - began)
