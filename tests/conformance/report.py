"""How results are printed: a line each, a summary, or one JSON document; and the list of all scenarios."""

import collections
import json
import sys


def line(result):
    reason = f": {result.reason}" if result.reason else ""
    print(
        f"{result.verdict:<6} {result.scenario.id}  {result.scenario.title}{reason}  ({result.seconds:.1f} s)",
        flush=True,
    )


def counts(results):
    verdicts = collections.Counter(result.verdict for result in results)
    return {verdict: verdicts[verdict] for verdict in ("PASS", "FAIL", "SKIP", "BROKEN")}


def score(results):
    """Of those that were judged: a skipped scenario says nothing about the gateway."""
    count = counts(results)
    judged = count["PASS"] + count["FAIL"]
    return 100 * count["PASS"] / judged if judged else None


def summary(results):
    count = counts(results)
    failed = [result.scenario.id for result in results if result.verdict == "FAIL"]
    print()
    print(f"{count['PASS']} passed, {count['FAIL']} failed, {count['SKIP']} skipped of {len(results)} scenarios")
    if count["BROKEN"]:
        print(f"{count['BROKEN']} broken: an error of the suite, please report it")
    if failed:
        print("failed: " + " ".join(sorted(failed)))
    print(
        "score: nothing was judged" if score(results) is None else f"score: {score(results):.1f} % of what was judged"
    )


def document(results):
    scenarios = [
        {
            "id": result.scenario.id,
            "subject": result.scenario.subject,
            "title": result.scenario.title,
            "sources": result.scenario.sources,
            "verdict": result.verdict,
            "reason": result.reason,
            "seconds": round(result.seconds, 3),
        }
        for result in sorted(results, key=lambda result: result.scenario.id)
    ]
    json.dump({"counts": counts(results), "score": score(results), "scenarios": scenarios}, sys.stdout, indent=1)
    print()


def listing(scenarios, as_json):
    if as_json:
        fields = ("id", "subject", "title", "sources", "needs")
        json.dump(
            [{field: getattr(scenario, field) for field in fields} for scenario in scenarios], sys.stdout, indent=1
        )
        return print()
    for scenario in scenarios:
        needs = " ".join(
            f"--{name.replace('_', '-')}" + (f" x{keys}" if keys > 1 else "") for name, keys in scenario.needs.items()
        )
        print(
            f"{scenario.id}  {scenario.title}\n       from {scenario.sources}"
            + (f"\n       needs {needs}" if needs else "")
        )
    total = collections.Counter()
    for scenario in scenarios:
        total.update({name: keys for name, keys in scenario.needs.items() if keys})
    keys = ", ".join(f"{count} in --{name.replace('_', '-')}" for name, count in sorted(total.items()))
    print(f"\n{len(scenarios)} scenarios. Keys that a full run uses up: {keys}")
