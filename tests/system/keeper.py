"""Nothing that the tests start outlives them, also when they are killed in the middle.

Every process that they start carries a mark in its environment, which its children inherit, or in the name of its
working folder, since some overwrite their environment; the namespaces carry it in their names. A keeper, a process in
a session of its own, waits for the end of a pipe from the tests, which comes however they end; then it kills whatever
carries the mark.
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
"""Of this run of the tests."""
MARKED = {VARIABLE: MARK}
"""For the environment of whatever is started."""


class Keeper:
    """While it lives, so may what carries the mark."""

    def __init__(self, mark: str = MARK) -> None:
        command = [sys.executable, "-S", __file__, mark]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def end(self) -> None:
        """Kill what carries the mark, and wait until it is gone."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0, "processes of the tests cannot be killed"


def sweep(mark: str, patience: float = 30.0) -> bool:
    """End the processes with this mark, then the namespaces; false: some do not end."""
    end = time.monotonic() + patience
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
    """The processes that carry a mark."""
    entry = f"{VARIABLE}={mark}".encode()
    return [
        process
        for process in _processes()
        if entry in environment(process).split(b"\0") or mark in _working_folder(process)
    ]


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if int(path.name) != os.getpid()]


def environment(process: int) -> bytes:
    """What a process began with."""
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:  # it has ended meanwhile, or is somebody else's
        return b""


def _working_folder(process: int) -> str:
    try:
        return os.readlink(f"/proc/{process}/cwd")
    except OSError:
        return ""


if __name__ == "__main__":
    sys.stdin.read()
    sys.exit(0 if sweep(sys.argv[1]) else 1)
