"""End another process that does not end by itself, from a process of its own: the one that asks for it ends before.

That process imports no torch: it runs on a host that may be short of memory.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from samestep.core import processes
from samestep.core.child_python import child_env, python_command


def end_later(pid: int, timeout: float) -> None:
    """Start a process that ends process `pid` if it is still there after `timeout` seconds."""
    with suppress(OSError):
        subprocess.Popen(
            python_command("-m", __name__, str(pid), str(timeout)),
            env=child_env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a launcher ends the process groups of its workers
        )


def end_process(pid: int, timeout: float, between: float = 5.0) -> None:
    """Wait for a process to end; after `timeout` seconds send SIGTERM, and `between` seconds later SIGKILL.

    Only to that process: another one may get its number once it has ended.
    """
    began = processes.start_time(pid)
    for number, seconds in ((signal.SIGTERM, timeout), (signal.SIGKILL, between)):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if processes.start_time(pid) != began or processes.state(pid) == "gone":
                return
            time.sleep(0.2)
        with suppress(OSError):
            os.kill(pid, number)


if __name__ == "__main__":
    end_process(int(sys.argv[1]), float(sys.argv[2]))
