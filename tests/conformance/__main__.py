"""`python3 tests/conformance --base-url URL --key KEY ...`: see README.md beside this file."""

import sys

import arguments
import report
import runner
import suite


def main(argv):
    options = arguments.parse(argv)
    wanted = runner.chosen(options.only)
    if options.list:
        report.listing(wanted, options.json)
        return 0
    if not wanted:
        print(f"no scenario fits {' '.join(options.only)}: see --list", file=sys.stderr)
        return 2
    return suite.conduct(options, wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
