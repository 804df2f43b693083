"""The command line: which gateway, and what it was configured to do. An option that is left out skips the scenarios
that need it; a file of arguments is read with @FILE, one option and its values a line."""

import argparse
import re
import shlex
import subprocess

EPILOG = """
The gateway needs one upstream, this suite's own (--upstream-listen), and the keys with the limits given here. Keys are
used up: give those of a pool as a list or as a range such as 'sk-tokens-{1..40}', and fresh ones for the next run.
tests/conformance/README.md shows how to configure a gateway; --list says what each scenario needs.
"""


class Parser(argparse.ArgumentParser):
    def convert_arg_line_to_args(self, line):
        return shlex.split(line, comments=True)


def parse(argv):
    parser = Parser(
        prog="conformance",
        description="Does an OpenAI-compatible gateway keep its limits, its accounts and the protocol?",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        fromfile_prefix_chars="@",
    )
    gateway(parser)
    keys(parser)
    behaviour(parser)
    commands(parser)
    output(parser)
    options = parser.parse_args(argv)
    if not options.list and not (options.base_url and options.key):
        parser.error("give --base-url and --key, or --list")
    return prepared(options)


def gateway(parser):
    group = parser.add_argument_group("the gateway under test")
    group.add_argument("--base-url", metavar="URL", help="with /v1: http://127.0.0.1:8080/v1")
    group.add_argument("--replica-url", metavar="URL", help="of a second gateway over the same store")
    group.add_argument(
        "--upstream-listen", metavar="ADDR", default="127.0.0.1:9099", help="where the scripted upstream listens"
    )
    group.add_argument("--model", default="scripted", help="a model whose only upstream is http://ADDR/v1")
    group.add_argument("--alias", metavar="NAME", help="a second name of it, which reaches the upstream under another")
    group.add_argument("--embedding-model", metavar="NAME", help="a model for embeddings, same upstream")
    group.add_argument(
        "--pair-model", metavar="NAME", help="a model with two upstreams: http://ADDR/a/v1 and http://ADDR/b/v1"
    )
    group.add_argument("--slow-model", metavar="NAME", help="same upstream as --model, never fast: for charges by time")
    group.add_argument("--dead-model", metavar="NAME", help="a model whose upstream refuses connections")


def keys(parser):
    group = parser.add_argument_group("keys, each of a pool with limits of its own")
    group.add_argument("--key", help="without limits")
    pools = {
        "token": "each may use exactly --token-limit tokens",
        "request": "each may make exactly --request-limit calls in a day",
        "second": "each may make --second-limit calls a second",
        "second-token": "each may use --second-token-limit tokens a second",
        "small": "each may use 600 tokens a minute",
        "parallel": "each may have one call in flight",
        "ceiling": "no single call may use more than --ceiling tokens",
        "money": "each may spend exactly --money-limit dollars",
    }
    for name, text in pools.items():
        group.add_argument(f"--{name}-keys", metavar="KEY", nargs="+", help=text)
    group.add_argument(
        "--team-keys",
        metavar="KEY,KEY",
        nargs="+",
        help="pairs: each key may use two thirds of --token-limit, the two together --token-limit",
    )


def behaviour(parser):
    group = parser.add_argument_group("limits and times it was configured with")
    number = {"type": float, "metavar": "N"}
    group.add_argument("--token-limit", type=int, metavar="N", default=6000)
    group.add_argument("--token-period", **number, default=86400, help="seconds in which it refills (a day)")
    group.add_argument("--request-limit", type=int, metavar="N", default=10)
    group.add_argument("--second-limit", type=int, metavar="N", default=20)
    group.add_argument("--second-token-limit", type=int, metavar="N", default=1000)
    group.add_argument("--ceiling", type=int, metavar="N", help="tokens of one call")
    group.add_argument("--money-limit", **number, help="dollars")
    group.add_argument(
        "--price", type=float, metavar="N", help="dollars per million tokens, prompt and completion alike"
    )
    group.add_argument(
        "--default-max-tokens", type=int, metavar="N", help="what is reserved for a call that names no cap"
    )
    group.add_argument("--body-limit", type=int, metavar="BYTES", help="the largest request body")
    group.add_argument("--response-timeout", **number, help="seconds until an upstream that says nothing is given up")
    group.add_argument("--idle-timeout", **number, help="seconds until a stream that says nothing more is given up")
    group.add_argument("--keepalive", **number, help="seconds after which a silent stream gets a comment")
    group.add_argument("--lease", **number, help="seconds within which a killed gateway's reservations come back")
    group.add_argument("--durable-after", **number, default=1, help="seconds after which use survives a kill (1)")
    group.add_argument("--cors-origin", metavar="ORIGIN", help="an origin that browsers may call from")
    group.add_argument(
        "--store-policy", choices=["closed", "open"], help="what happens to calls while the store is away"
    )


def commands(parser):
    group = parser.add_argument_group("shell commands that a scenario may run")
    group.add_argument(
        "--kill-command", metavar="CMD", help="ends the gateway without warning (kill -9) and starts it again"
    )
    group.add_argument("--store-stop-command", metavar="CMD", help="stops the store")
    group.add_argument("--store-freeze-command", metavar="CMD", help="makes the store accept and never answer")
    group.add_argument("--store-start-command", metavar="CMD", help="makes the store answer again, after either")
    group.add_argument("--store-flush-command", metavar="CMD", help="makes the store forget its scripts (SCRIPT FLUSH)")


def output(parser):
    group = parser.add_argument_group("what is run and printed")
    group.add_argument(
        "--only", metavar="PATTERN", action="append", help="ids (OV-*), or words of titles; may be repeated"
    )
    group.add_argument("--list", action="store_true", help="print the scenarios, run none")
    group.add_argument("--json", action="store_true", help="print one JSON document")
    group.add_argument(
        "--patience", type=float, metavar="S", default=20, help="seconds without a byte until a call has failed (20)"
    )
    group.add_argument("--jobs", type=int, default=4, help="scenarios at a time (4)")


def prepared(options):
    """Ranges become lists, pairs become tuples, commands become functions."""
    for name, value in vars(options).items():
        if name.endswith("_keys") and value:
            value = [key for text in value for key in spread(text)]
            setattr(options, name, [tuple(key.split(",")) for key in value] if name == "team_keys" else value)
        elif name.endswith("_command") and value:
            setattr(options, name, shell(value))
    return options


def spread(text):
    """sk-{1..3} is sk-1 sk-2 sk-3; a number twice in a text runs along."""
    found = re.search(r"\{(\d+)\.\.(\d+)\}", text)
    if not found:
        return [text]
    first, last = map(int, found.groups())
    return [text.replace(found.group(), str(number)) for number in range(first, last + 1)]


def shell(line):
    return lambda: subprocess.run(line, shell=True, check=True, timeout=60)
