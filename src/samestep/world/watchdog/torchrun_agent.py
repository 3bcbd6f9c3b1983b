"""torchrun's agent may hang for many minutes on a broken connection, so a run that hangs ends its agent too."""

import os
from collections.abc import Mapping

from samestep.core import processes
from samestep.core.launch_env import LAUNCHER
from samestep.core.process_end import end_later

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
    end_later(agent, AGENT_TIMEOUT)
