"""How a rank ends when the run hangs: it writes what it knows, one rank prints it, all end at about the same time.

torchrun's agent may hang for many minutes on a broken connection, so a run that hangs ends its agent too.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict

from samestep.core import processes
from samestep.core.errors import EXIT_STALLED, Stalled
from samestep.core.exit_report import ExitReport
from samestep.core.json_files import Json, write_json
from samestep.core.launch_env import LAUNCH_ID, LAUNCHER
from samestep.core.output import print_safely
from samestep.core.process_end import end_later
from samestep.core.rundir import RunDir
from samestep.world.rank_discovery import OPENMPI_JOB
from samestep.world.watchdog import stack_dump
from samestep.world.watchdog.blame import Report
from samestep.world.watchdog.heartbeat import HeartbeatExchange
from samestep.world.watchdog.mpiexec import end_mpiexec_later
from samestep.world.watchdog.stack_dump import StackDumpFile

PEER_WAIT = 3.0
"""Seconds that ranks wait for each other: the first to end breaks connections, and the others would report that."""
FORCED_EXIT = 15.0
"""Seconds after which a process is ended that hangs while it ends, on a disk perhaps."""
_LAUNCH_VARIABLES = {
    *(LAUNCH_ID, "TORCHELASTIC_RUN_ID", "MASTER_PORT"),
    *("PALS_APID", "SLURM_JOB_ID", "SLURM_STEP_ID", *OPENMPI_JOB),
}
"""The same for all ranks of a launch, and for no others."""


def end_stalled_run(
    stall: dict[str, Json], heartbeats: HeartbeatExchange, rundir: RunDir, dump_file: StackDumpFile
) -> None:
    """End this rank of a run that hangs; does not return."""
    dump_file.exit_after(FORCED_EXIT)
    prints = stall["speaker"] == heartbeats.rank
    report = ExitReport.from_error(Stalled(stall["sentence"]), EXIT_STALLED, plain=True, echo=not prints)
    if not report.write(os.environ) and prints:
        print_safely(f"samestep: {report.text}", sys.stderr)
    if prints:
        with suppress(OSError):
            write_json(rundir.stall_report, stall)
    _write_and_wait(report, heartbeats, rundir, dump_file)
    with suppress(OSError):
        if not rundir.stall_report.exists():  # this rank is on another disk than the one that prints
            write_json(rundir.stall_report, stall)
    _kill_silent_neighbours(stall["reports"])
    end_agent_later(os.environ)
    end_mpiexec_later(os.environ)
    os._exit(report.code)


def end_after_failure(
    failure: dict[str, Json], heartbeats: HeartbeatExchange, rundir: RunDir, dump_file: StackDumpFile
) -> None:
    """End this rank, which makes no progress since another one failed, as in a collective that never returns."""
    dump_file.exit_after(FORCED_EXIT)
    text = f"rank {failure['rank']} on {failure['host']} failed: {failure['text']}"
    report = ExitReport.from_error(RuntimeError(text), failure["code"], plain=True, echo=True)
    report.write(os.environ)
    _write_and_wait(report, heartbeats, rundir, dump_file)
    end_mpiexec_later(os.environ)
    os._exit(report.code)


def _write_and_wait(
    report: ExitReport, heartbeats: HeartbeatExchange, rundir: RunDir, dump_file: StackDumpFile
) -> None:
    """Write the exit report and the stacks, and wait a moment for the other ranks to do so."""
    with suppress(OSError):
        dump_file.dump()
        write_json(rundir.exit_report(report.rank), asdict(report))
        stack_dump.dump_collectives(rundir.collectives(report.rank))
    heartbeats.is_ending = True
    end = time.monotonic() + PEER_WAIT
    while not heartbeats.all_ending and time.monotonic() < end:
        time.sleep(0.05)


def _kill_silent_neighbours(reports: list[Report]) -> None:
    """A rank that is stopped, or holds its interpreter, ends only by SIGKILL, which not every launcher sends."""
    for report in reports:
        same_host = not report["alive"] and report["host"] == socket.gethostname()
        if same_host and report.get("born") and processes.start_time(report["pid"]) == report["born"]:
            with suppress(OSError):
                if _is_of_this_launch(report["pid"]):
                    os.kill(report["pid"], signal.SIGKILL)


def _is_of_this_launch(pid: int) -> bool:
    """Whether a process is a rank of this launch: what a report says of it is not enough to kill it."""
    return processes.is_own(pid) and (
        processes.parent(pid) == os.getppid() or _launch_variables(pid) == _launch_variables(os.getpid()) != {}
    )


def _launch_variables(pid: int) -> dict[str, str]:
    return {name: value for name, value in processes.environment(pid).items() if name in _LAUNCH_VARIABLES}


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
