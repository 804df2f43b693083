"""Judges Penstock: starts its gateway by `penstock.yaml`, with two replicas and a Redis of its own if asked for, and runs
the suite against it. Arguments that are not the launcher's go to the suite.

    python3 tests/conformance/penstock.py --binary target/release/penstock [--store redis] [--only 'OV-*']
"""

import argparse
import os
import sys
import tempfile

import arguments
import runner
import suite

from processes import Child, answers, free_port, redis_call

HERE = os.path.dirname(os.path.abspath(__file__))


class Stack:
    """The processes, and what the suite is told about them."""

    def __init__(self, binary, store, data, logs, upstream_port):
        self.data = data
        self.logs = logs
        self.upstream_port = upstream_port
        self.redis_port = free_port() if store == "redis" else None
        self.redis = self._redis() if self.redis_port else None
        # The memory store is for one process.
        self.gateways = [self._gateway(binary, number) for number in range(2 if self.redis else 1)]

    def _redis(self):
        command = [
            "redis-server",
            "--port",
            str(self.redis_port),
            "--bind",
            "127.0.0.1",
            "--dir",
            self.data,
            "--save",
            "",
        ]
        # What it knows must outlive the scenario that kills it; the machine stays up, so nothing waits for the disk.
        command += ["--appendonly", "yes", "--appendfsync", "no"]
        return Child("redis", command, lambda: redis_call(self.redis_port, "PING") == "+PONG", self.logs)

    def _gateway(self, binary, number):
        port, admin = free_port(), free_port()
        env = {
            "LISTEN": f"127.0.0.1:{port}",
            "ADMIN": f"127.0.0.1:{admin}",
            "STORE": f"redis://127.0.0.1:{self.redis_port}/0" if self.redis else "memory",
            "DATA_DIR": os.path.join(self.data, f"gateway-{number}"),
            "UPSTREAM": f"http://127.0.0.1:{self.upstream_port}",
        }
        command = [binary, "serve", "--config", os.path.join(HERE, "penstock.yaml")]
        child = Child(f"gateway-{number}", command, lambda: answers(f"http://127.0.0.1:{admin}/readyz"), self.logs, env)
        child.url = f"http://127.0.0.1:{port}/v1"
        return child

    def start(self):
        for child in self.children():
            child.start()

    def stop(self):
        for child in self.children():
            child.kill()

    def children(self):
        return [*([self.redis] if self.redis else []), *self.gateways]

    def options(self, argv):
        addresses = ["--base-url", self.gateways[0].url, "--upstream-listen", f"127.0.0.1:{self.upstream_port}"]
        if self.redis:
            addresses += ["--replica-url", self.gateways[1].url, "--store-policy", "closed"]
        options = arguments.parse([f"@{HERE}/penstock.args", *addresses, *argv])
        options.kill_command = self.gateways[0].restart
        if self.redis:
            options.store_stop_command = self.redis.kill
            options.store_freeze_command = self.redis.freeze
            options.store_start_command = self.redis.thaw
            options.store_flush_command = lambda: redis_call(self.redis_port, "SCRIPT", "FLUSH")
        return options


def main(argv):
    parser = argparse.ArgumentParser(prog="penstock.py", description=__doc__.split("\n\n")[0], add_help=False)
    parser.add_argument("--binary", default="target/release/penstock")
    parser.add_argument("--store", choices=["memory", "redis"], default="memory")
    parser.add_argument("--logs", help="folder for the logs, kept; else they go with the run")
    mine, rest = parser.parse_known_args(argv)
    with tempfile.TemporaryDirectory() as data:
        logs = mine.logs or data
        os.makedirs(logs, exist_ok=True)
        stack = Stack(mine.binary, mine.store, data, logs, free_port())
        try:
            stack.start()
            options = stack.options(rest)
            return suite.conduct(options, runner.chosen(options.only))
        finally:
            stack.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
