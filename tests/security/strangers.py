"""Another user of this host, who reaches the ports of a run: run as `python strangers.py ATTACK PORT...`.

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

from system.requirements import require

NOBODY = 65534
FORGED_FAILURE = {"rank": 7, "host": "elsewhere", "text": "forged", "code": 0}
PLAIN_NAMES = ("samestep/failure", "samestep/stall", "samestep/share/choice", "samestep/share/run directory")


def attack(kind: str, ports: Sequence[int], seconds: float = 6.0, *args: str) -> subprocess.CompletedProcess[str]:
    """Attack these ports as another user; returns what the attacker found out."""
    require("another user", (), root=True)
    command = [sys.executable, __file__, kind, str(seconds), ",".join(map(str, ports)), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


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


def listening(pid: int) -> set[tuple[str, int]]:
    """The addresses at which a process and all that it started listen."""
    sockets = set()
    for one in process_tree(pid):
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


def _main(kind: str, seconds: str, ports: str, *args: str) -> None:
    from torch._C._distributed_c10d import TCPStore

    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    end, seen = time.monotonic() + float(seconds), set()
    forged = json.dumps([*args, {}] if args else FORGED_FAILURE)
    while time.monotonic() < end:
        for port in map(int, ports.split(",")):
            try:
                store = TCPStore("127.0.0.1", port, None, False, timedelta(seconds=1), wait_for_workers=False)
                keys = store.list_keys()
            except Exception:  # no store
                continue
            seen.update(keys)
            for name in PLAIN_NAMES if kind == "add" else keys:
                store.set(name, forged)
        time.sleep(0.05)
    print(json.dumps(sorted(seen)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
