"""A run of the suite from its options to its exit status: what the command line and the launchers share."""

import plays
import report
import runner
import scenarios  # noqa: F401 - registers them
from upstream import Upstream


def conduct(options, wanted):
    """0: none failed. 1: some did. 3: the suite itself is at fault, or judged nothing."""
    results = collect(options, wanted, (lambda result: None) if options.json else report.line)
    (report.document if options.json else report.summary)(results)
    count = report.counts(results)
    if count["BROKEN"] or not count["PASS"] + count["FAIL"]:
        return 3
    return 1 if count["FAIL"] else 0


def collect(options, wanted, tell):
    upstream = Upstream(options.upstream_listen, plays.ordinary)
    try:
        return runner.run(wanted, options, upstream, tell)
    finally:
        upstream.close()
