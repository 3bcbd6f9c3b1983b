"""Another user of this host, who meets launchers of several nodes: run as `python node_strangers.py ATTACK PORT`.

Before it does anything it becomes the user "nobody". What it has found out is printed as JSON when its time is over.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from samestep.core.handshake import NotTrusted, answer, call
from system.requirements import MODULES, require

NOBODY = 65534
KEY = b"a guess" * 4
OLD_HELLO = b'{"kind": "hello", "host": "x", "nproc": 1, "rank": 1, "launch": "", "command": "", "language": 1}\n'
OLD_START = b'{"kind": "welcome"}\n{"kind": "start", "part": {}, "remedy": ["--out=/tmp/planted"]}\n'


@contextmanager
def stranger(attack: str, port: int) -> Iterator[subprocess.Popen[str]]:
    """Attack the port as another user; has begun when this returns."""
    require("another user", (), root=True)
    command, env = [sys.executable, __file__, attack, str(port)], {**os.environ, "PYTHONPATH": MODULES}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def found(process: subprocess.Popen[str]) -> list[str]:
    """End the attack; returns what the stranger found out."""
    output, _ = process.communicate("", timeout=120)
    return list(json.loads(output))


def _join(port: int) -> list[str]:
    """Join the launch, by the handshake with a guess, and in the way of versions that had none."""
    seen = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        try:
            call(connection, KEY)
            seen.append("trusted")
        except NotTrusted:
            seen.append("refused")
    with socket.create_connection(("127.0.0.1", port)) as connection, suppress(OSError):
        connection.settimeout(8)
        connection.sendall(OLD_HELLO)
        received = connection.recv(2**16, socket.MSG_WAITALL)
        seen.append("welcome" if b"welcome" in received else "closed")
    return seen


class _Leader:
    """Holds the port before the first node does, and gives orders to who connects."""

    def __init__(self, port: int) -> None:
        self.seen: list[str] = []
        self._server = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            connection, _ = self._server.accept()
            with connection, suppress(OSError):
                try:
                    answer(connection, KEY)
                except NotTrusted:
                    connection.sendall(OLD_START)
                    connection.settimeout(2)
                    self.seen.append("obeyed" if connection.recv(2**16) else "left")


def _idle(port: int) -> list[socket.socket]:
    """Connections that say nothing, ever more of them."""
    held: list[socket.socket] = []

    def open_more() -> None:
        while True:
            with suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), timeout=1))
            time.sleep(0.002 if len(held) < 600 else 0.05)

    threading.Thread(target=open_more, daemon=True).start()
    end = time.monotonic() + 20
    while len(held) < 300 and time.monotonic() < end:
        time.sleep(0.01)
    return held


def _main(attack: str, port: int) -> None:
    "host".encode("idna")  # what a connection imports, which that user may not read
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    fake = _Leader(port) if attack == "lead" else None
    held = _idle(port) if attack == "idle" else []
    seen = _join(port) if attack == "join" else []
    print("ready", flush=True)
    sys.stdin.read()
    print(json.dumps(fake.seen if fake else seen or [str(len(held))]))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
