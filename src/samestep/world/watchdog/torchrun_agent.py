"""torchrun's agent may hang for many minutes on a broken connection, so a run that hangs ends its agent too.

The process that does so imports no torch: it runs on a host that may be short of memory.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from samestep.core import processes
from samestep.core.child_python import child_env, python_command
from samestep.core.launch_env import LAUNCHER

AGENT_TIMEOUT = 40.0
"""Seconds that an agent has to end by itself: after 30 it kills workers that do not stop."""


def end_agent_later(env: Mapping[str, str]) -> None:
    """From a worker of stock torchrun that is about to end: start a process that ends the agent if it does not end.

    Not while the agent has restarts left: then it may rightly wait for other nodes.
    """
    if LAUNCHER in env or "TORCHELASTIC_RUN_ID" not in env or env.get("LOCAL_RANK") != "0":
        return
    if int(env.get("TORCHELASTIC_RESTART_COUNT", "0")) < int(env.get("TORCHELASTIC_MAX_RESTARTS", "0")):
        return
    agent = os.getppid()
    if "python" not in os.path.basename("".join(processes.command(agent)[:1])):
        return  # the agent was killed, and whatever adopts orphans here is the parent now
    with suppress(OSError):
        subprocess.Popen(
            python_command("-m", __name__, str(agent), str(AGENT_TIMEOUT)),
            env=child_env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
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
