"""Kills everything that the tests started, also when the tests themselves are killed.

Every process that the tests start has a mark in its environment, which its children inherit, or in the name of its
working folder, since some processes overwrite their environment. Network namespaces have the mark in their names. A
cleanup process, in its own session, reads from a pipe that the tests hold open. However the tests end, the pipe
closes; then the cleanup process kills everything that has the mark.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

VARIABLE = "SAMESTEP_TEST_MARK"
MARK = f"ss{uuid4().hex[:8]}"
"""The mark of this run of the tests."""
MARKED = {VARIABLE: MARK}
"""Goes into the environment of every process that the tests start."""


class ProcessCleanup:
    """Starts the cleanup process."""

    def __init__(self, mark: str = MARK) -> None:
        command = [sys.executable, "-S", __file__, mark]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def end(self) -> None:
        """Kill everything that has the mark, and wait until it is gone."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0, "some processes of the tests cannot be killed"


def kill_marked(mark: str, timeout: float = 30.0) -> bool:
    """Kill the processes with this mark, then delete its namespaces; false: some processes are still alive."""
    end = time.monotonic() + timeout
    while found := marked(mark):
        for process in found:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    for namespace in Path("/run/netns").glob(f"{mark}-*"):
        subprocess.run(["ip", "netns", "del", namespace.name], check=False)
    return True


def marked(mark: str) -> list[int]:
    """The ids of the processes that have a mark."""
    entry = f"{VARIABLE}={mark}".encode()
    return [
        process
        for process in _processes()
        if entry in environment(process).split(b"\0") or mark in _working_folder(process)
    ]


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if int(path.name) != os.getpid()]


def environment(process: int) -> bytes:
    """The environment that a process started with."""
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:  # it has exited in the meantime, or belongs to another user
        return b""


def _working_folder(process: int) -> str:
    try:
        return os.readlink(f"/proc/{process}/cwd")
    except OSError:
        return ""


if __name__ == "__main__":
    sys.stdin.read()
    sys.exit(0 if kill_marked(sys.argv[1]) else 1)
