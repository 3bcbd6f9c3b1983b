"""Another user of this host, who reaches the ports of a run: `python strangers.py`, with what to do on stdin.

Before it does anything it becomes the user "nobody"; torch is imported before, since that user may not read it.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from system.requirements import MODULES, require

NOBODY = 65534
FORGED_FAILURE = {"rank": 7, "host": "elsewhere", "text": "forged", "code": 0}
SECONDS = 4.0
PLAIN_NAMES = ("samestep/failure", "samestep/stall", "samestep/share/choice", "samestep/share/run directory")


class Stranger:
    """Another user, ready to attack; starting one takes a while, so that is done before the run to be attacked."""

    def __init__(self) -> None:
        require("another user", (), root=True)
        command, env = [sys.executable, __file__], {**os.environ, "PYTHONPATH": MODULES}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def attack(self, kind: str, ports: Sequence[int], forged: Any = FORGED_FAILURE) -> list[str]:
        """For some seconds, write `forged` into every store at these ports; the names that were seen there.

        `kind` is `add`, under names that entries would have without authentication, or `overwrite`, all that is there.
        """
        output, _ = self._process.communicate(json.dumps([kind, list(ports), forged]), timeout=60)
        return json.loads(output)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def process_tree(pid: int) -> list[int]:
    """A process and all that it started."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # gone
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def listening(*pids: int) -> set[tuple[str, int]]:
    """The addresses at which processes listen."""
    sockets = set()
    for one in pids:
        for link in Path(f"/proc/{one}/fd").glob("*"):
            try:
                sockets.add(os.readlink(link))
            except OSError:
                continue
    found = set()
    for file, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                address, port = fields[1].split(":")
                words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
                found.add((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found


def _main() -> None:
    from torch._C._distributed_c10d import TCPStore

    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    kind, ports, forged = json.load(sys.stdin)
    end, seen = time.monotonic() + SECONDS, set()
    while time.monotonic() < end:
        for port in ports:
            try:
                store = TCPStore("127.0.0.1", port, None, False, timedelta(seconds=1), wait_for_workers=False)
                keys = store.list_keys()
            except Exception:  # no store
                continue
            seen.update(keys)
            for name in PLAIN_NAMES if kind == "add" else keys:
                store.set(name, json.dumps(forged))
        time.sleep(0.05)
    print(json.dumps(sorted(seen)))


if __name__ == "__main__":
    _main()
