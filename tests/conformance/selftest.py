"""Can each scenario fail, and for its own reason? Runs the suite against gateways that are wrong on purpose and compares
what it finds with `bad/expected.txt`.

    python3 tests/conformance/selftest.py [--only PATTERN] [--reasons]
"""

import argparse
import concurrent.futures
import os
import sys

import arguments
import runner
import suite
from bad.leaky import Books, Late, Leaky
from bad.naive import Naive, Server
from processes import free_port
from scenario import short

BAD = (Naive, Leaky, Late)
HERE = os.path.dirname(os.path.abspath(__file__))


def options_for(handler):
    address = f"127.0.0.1:{free_port()}"
    # A bad gateway may keep a client waiting for ever: not for long here.
    args = ["--base-url", "http://set-below", "--upstream-listen", address, "--patience", "7", "--jobs", "8"]
    options = arguments.parse(
        [f"@{HERE}/penstock.args", *args, "--store-policy", "closed", "--cors-origin", "http://app.test"]
    )
    first, second = Server(handler, options), Server(handler, options)
    # Each replica has books of its own.
    first.books, second.books = Books(options), Books(options)
    options.base_url, options.replica_url = first.url, second.url
    hooks(options, first.books)
    return options


def hooks(options, books):
    def kill():
        # Its calls end unsettled, what it held stays held; what it counted in memory is gone.
        books.generation += 1
        books.windows = {account: window for account, window in books.windows.items() if "request" not in account}

    def store(state):
        return lambda: setattr(books, "store", state)

    options.kill_command = kill
    options.store_stop_command = options.store_flush_command = store("down")
    options.store_freeze_command = store("frozen")
    options.store_start_command = store("up")


def expected():
    """Scenario -> (gateway, part of the reason)."""
    with open(os.path.join(HERE, "bad", "expected.txt"), encoding="utf-8") as file:
        lines = [line.rstrip("\n").split(None, 2) for line in file if line.strip() and not line.startswith("#")]
    return {id: (gateway, part) for id, gateway, part in lines}


def main(argv):
    parser = argparse.ArgumentParser(prog="selftest.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", action="append", help="as for the suite")
    parser.add_argument("--reasons", action="store_true", help="print all that the suite found")
    args = parser.parse_args(argv)
    wanted, table = runner.chosen(args.only), expected()
    found, wrong = {}, []
    with concurrent.futures.ThreadPoolExecutor(len(BAD)) as pool:
        # Side by side: they are waited for most of the time.
        judged = pool.map(lambda handler: suite.collect(options_for(handler), wanted, lambda result: None), BAD)
        judged = list(zip(BAD, judged))
    for handler, results in judged:
        for result in results:
            if result.verdict == "FAIL":
                found[result.scenario.id, handler.__name__] = result.reason
            elif result.verdict != "PASS":
                wrong.append(f"{result.scenario.id} on {handler.__name__} is {result.verdict}: {result.reason}")
    if args.reasons:
        for (id, gateway), reason in sorted(found.items()):
            print(f"{id} {gateway:<6} {short(reason, 160)}")
    for scenario in wanted:
        gateway, part = table.get(scenario.id, ("no gateway", ""))
        reason = found.get((scenario.id, gateway))
        if reason is None:
            wrong.append(f"{scenario.id} does not fail for {gateway}")
        elif part not in reason:
            wrong.append(f"{scenario.id} fails for {gateway} for another reason: {short(reason)}")
    print("\n".join(wrong))
    for handler in BAD:
        failed = sum(gateway == handler.__name__ for _, gateway in found)
        print(f"{handler.__name__}: {failed} of {len(wanted)} scenarios fail")
    print(
        f"{len(wanted) - len(wrong)} of {len(wanted)} scenarios fail for the reason that they should, {len(wrong)} do not"
    )
    return 1 if wrong or not wanted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
