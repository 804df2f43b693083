"""Child processes of a launcher: a gateway or a store that can be killed, frozen and started again."""

import os
import signal
import socket
import subprocess
import time
import urllib.request


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Child:
    """`ready()`: whether it serves. Its output goes to a file in `folder`."""

    def __init__(self, name, command, ready, folder, env=None):
        self.name = name
        self.command = command
        self.ready = ready
        self.env = {**os.environ, **(env or {})}
        self.log = open(os.path.join(folder, f"{name}.log"), "ab")
        self.process = None

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log, env=self.env)
        end = time.monotonic() + 30
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{self.name} does not start:\n{self.tail()}")
            time.sleep(0.05)

    def kill(self):
        if self.process and self.process.poll() is None:
            # A frozen process does not die of anything gentler.
            self.process.kill()
            self.process.wait()

    def restart(self):
        self.kill()
        self.start()

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
        else:
            self.start()

    def tail(self):
        with open(self.log.name, errors="replace") as log:
            return "".join(log.readlines()[-20:])


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def redis_call(port, *words):
    """The first line of the reply, or None if nobody answers."""
    request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    try:
        with socket.create_connection(("127.0.0.1", port), 2) as connection:
            connection.sendall(request.encode())
            return connection.recv(1024).decode("utf-8", "replace").split("\r\n")[0]
    except OSError:
        return None
