"""How a rank ends when the run hangs: it writes what it knows, one rank speaks, all leave at about the same time.

torchrun's agent may hang for many minutes on a link that is cut, so a run that was found hung ends its agent too.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict

from samestep.core.errors import EXIT_STALLED, Stalled
from samestep.core.exit_report import ExitReport
from samestep.core.launch_env import LAUNCHER
from samestep.core.output import print_safely
from samestep.core.records import Json, write_json
from samestep.core.rundir import RunDir
from samestep.world.watchdog import stack_dump
from samestep.world.watchdog.blame import Report
from samestep.world.watchdog.heartbeat import HeartbeatExchange
from samestep.world.watchdog.stack_dump import BlackBox

PATIENCE = 40.0
"""Seconds that an agent has to end by itself: after 30 it kills workers that do not stop."""


def end_agent_later(env: Mapping[str, str]) -> None:
    """From a worker of stock torchrun that is about to end: leave a process behind that ends an agent which stays.

    Not while the agent has restarts left: then it may well wait for other nodes.
    """
    if LAUNCHER in env or "TORCHELASTIC_RUN_ID" not in env or env.get("LOCAL_RANK") != "0":
        return
    if int(env.get("TORCHELASTIC_RESTART_COUNT", "0")) < int(env.get("TORCHELASTIC_MAX_RESTARTS", "0")):
        return
    with suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(os.getppid()), str(PATIENCE)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def end_process(pid: int, patience: float, between: float = 5.0) -> None:
    """Wait for a process to end; after `patience` seconds ask it to, and a moment later force it."""
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, between)):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                os.kill(pid, 0)
            except OSError:
                return
            time.sleep(0.2)
        with suppress(OSError):
            os.kill(pid, number)


if __name__ == "__main__":
    end_process(int(sys.argv[1]), float(sys.argv[2]))


PARTING = 3.0
"""Seconds that ranks wait for each other: the first to leave breaks connections, and the others would tell of that."""
ENDING = 15.0
"""Seconds after which a process is ended that hangs while it ends, on a disk perhaps."""


def end_stalled(verdict: dict[str, Json], post: HeartbeatExchange, rundir: RunDir, box: BlackBox) -> None:
    """End this rank of a run that hangs; does not return."""
    box.end_within(ENDING)
    speaks = verdict["speaker"] == post.rank
    word = ExitReport.from_error(Stalled(verdict["sentence"]), EXIT_STALLED, plain=True, echo=not speaks)
    if not word.write(os.environ) and speaks:
        print_safely(f"samestep: {word.text}", sys.stderr)
    if speaks:
        with suppress(OSError):
            write_json(rundir.stall_report, verdict)
    _part(word, post, rundir, box)
    with suppress(OSError):
        if not rundir.stall_report.exists():  # this rank does not share the speaker's disk
            write_json(rundir.stall_report, verdict)
    _end_silent_neighbours(verdict["reports"])
    end_agent_later(os.environ)
    os._exit(word.code)


def end_after(failure: dict[str, Json], post: HeartbeatExchange, rundir: RunDir, box: BlackBox) -> None:
    """End this rank, which stands still since another one failed, as in a collective that never returns."""
    box.end_within(ENDING)
    text = f"rank {failure['rank']} on {failure['host']} failed: {failure['text']}"
    word = ExitReport.from_error(RuntimeError(text), failure["code"], plain=True, echo=True)
    word.write(os.environ)
    _part(word, post, rundir, box)
    os._exit(word.code)


def _end_silent_neighbours(reports: list[Report]) -> None:
    """A rank that is stopped, or holds its interpreter, ends by force alone, and not every launcher uses that."""
    for report in reports:
        same_host = not report["alive"] and report["host"] == socket.gethostname()
        if same_host and report.get("born") and stack_dump.born(report["pid"]) == report["born"]:
            with suppress(OSError):
                os.kill(report["pid"], signal.SIGKILL)


def _part(word: ExitReport, post: HeartbeatExchange, rundir: RunDir, box: BlackBox) -> None:
    """Leave the word and the stacks behind, and wait a moment for the others to do so."""
    with suppress(OSError):
        box.dump()
        write_json(rundir.exit_report(word.rank), asdict(word))
        stack_dump.dump_collectives(rundir.collectives(word.rank))
    post.leaves = True
    end = time.monotonic() + PARTING
    while not post.all_leave and time.monotonic() < end:
        time.sleep(0.05)
