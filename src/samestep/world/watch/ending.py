"""How a rank ends when the run hangs: it writes what it knows, one rank speaks, all leave at about the same time."""

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict

from samestep.core.errors import EXIT_STALLED, Stalled
from samestep.core.handover import LastWord
from samestep.core.records import Json, write_json
from samestep.core.rundir import RunDir
from samestep.core.terminal import put
from samestep.world.watch import sight
from samestep.world.watch.blackbox import BlackBox
from samestep.world.watch.culprit import Report
from samestep.world.watch.post import Post
from samestep.world.watch.torchrun import end_agent_later

PARTING = 3.0
"""Seconds that ranks wait for each other: the first to leave breaks connections, and the others would tell of that."""
ENDING = 15.0
"""Seconds after which a process is ended that hangs while it ends, on a disk perhaps."""


def end_stalled(verdict: dict[str, Json], post: Post, rundir: RunDir, box: BlackBox) -> None:
    """End this rank of a run that hangs; does not return."""
    box.end_within(ENDING)
    speaks = verdict["speaker"] == post.rank
    word = LastWord.of(Stalled(verdict["sentence"]), EXIT_STALLED, plain=True, echo=not speaks)
    if not word.leave(os.environ) and speaks:
        put(f"samestep: {word.text}", sys.stderr)
    if speaks:
        with suppress(OSError):
            write_json(rundir.stall, verdict)
    _part(word, post, rundir, box)
    with suppress(OSError):
        if not rundir.stall.exists():  # this rank does not share the speaker's disk
            write_json(rundir.stall, verdict)
    _end_silent_neighbours(verdict["reports"])
    end_agent_later(os.environ)
    os._exit(word.code)


def end_after(failure: dict[str, Json], post: Post, rundir: RunDir, box: BlackBox) -> None:
    """End this rank, which stands still since another one failed, as in a collective that never returns."""
    box.end_within(ENDING)
    text = f"rank {failure['rank']} on {failure['host']} failed: {failure['text']}"
    word = LastWord.of(RuntimeError(text), failure["code"], plain=True, echo=True)
    word.leave(os.environ)
    _part(word, post, rundir, box)
    os._exit(word.code)


def _end_silent_neighbours(reports: list[Report]) -> None:
    """A rank that is stopped, or holds its interpreter, ends by force alone, and not every launcher uses that."""
    for report in reports:
        same_host = not report["alive"] and report["host"] == socket.gethostname()
        if same_host and report.get("born") and sight.born(report["pid"]) == report["born"]:
            with suppress(OSError):
                os.kill(report["pid"], signal.SIGKILL)


def _part(word: LastWord, post: Post, rundir: RunDir, box: BlackBox) -> None:
    """Leave the word and the stacks behind, and wait a moment for the others to do so."""
    with suppress(OSError):
        box.dump()
        write_json(rundir.word(word.rank), asdict(word))
        sight.dump_collectives(rundir.collectives(word.rank))
    post.leaves = True
    end = time.monotonic() + PARTING
    while not post.all_leave and time.monotonic() < end:
        time.sleep(0.05)
