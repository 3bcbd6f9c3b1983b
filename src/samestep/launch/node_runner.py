"""This node's part of a launch: runs its ranks, attempt after attempt, keeps what they print, says what happened."""

import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from samestep.core import exit_report, launch_env
from samestep.core.errors import EXIT_DONE
from samestep.core.output import print_safely
from samestep.core.records import JsonLines
from samestep.core.rundir import RunDir
from samestep.launch.attempt import Alarm, NodeAssignment
from samestep.launch.failure import Failure, headline, last_word
from samestep.launch.restart_policy import Decision
from samestep.launch.stop_requests import StopRequests


class NodeRunner:
    """The attempts of one launch on this node."""

    def __init__(self, words: Sequence[str], nproc: int, folder: Path, stop: StopRequests) -> None:
        self.words, self.nproc, self.stop = words, nproc, stop
        self.needs_folder = False
        """Whether what ranks printed lies only there."""
        self._folder = folder
        self._number = 0
        self._ranks = range(nproc)

    def attempt(self, part: NodeAssignment, remedy: Sequence[str], alarm: Alarm) -> list[Failure]:
        """One attempt; the ranks of this node that did not end well."""
        from samestep.launch.attempt import attempt

        self._number += 1
        self._ranks = range(part.first_rank, part.first_rank + self.nproc)
        outputs = self._folder / f"attempt_{self._number}"
        command = [sys.executable, "-u", *self.words, *remedy]
        failures = attempt(command, self.nproc, part, outputs, self.stop, alarm)
        run = launch_env.read_run_path(self._folder)
        if run is not None:
            _keep_outputs(outputs, run / "logs")
        if failures and sys.stdout.isatty():
            print_safely("\r\x1b[2K\x1b[?25h", sys.stdout, end="")  # a killed rank 0 leaves half a bar and no cursor
        return failures

    def show(self, verdict: Decision) -> None:
        """Say what happened: the first failing rank, here with its traceback; for all else there are the logs."""
        self._note(verdict)
        first = verdict.first
        if first is not None:
            print_safely(headline(first, brief=first.rank not in self._ranks), sys.stderr)
            exit_report.write_failure(self._folder, last_word(first))
            if not first.is_user_error:
                run = launch_env.read_run_path(self._folder)
                self.needs_folder = run is None
                say(f"the logs of all ranks are in {run / 'logs' if run else self._folder}")
        if verdict.said:
            say(verdict.said)

    def _note(self, verdict: Decision) -> None:
        """Leave it with the run as well, unless all is well; rank 0 was here, so its directory is."""
        run = launch_env.read_run_path(self._folder)
        if run is not None and verdict.code != EXIT_DONE and 0 in self._ranks:
            signal = self.stop.reason.name if self.stop.reason else ""
            with suppress(OSError):
                JsonLines(RunDir(run).events).append({"time": time.time(), **verdict.event(), "signal": signal})


def say(sentence: str) -> None:
    """Tell the user, whatever becomes of the terminal."""
    print_safely(f"samestep: {sentence}", sys.stderr)


def _keep_outputs(source: Path, logs: Path) -> None:
    """What ranks printed that did not go to the terminal lies with the run's logs, attempt after attempt."""
    for path in sorted([*source.glob("rank_*.out"), *source.glob("rank_*.err")]):
        with suppress(OSError):  # a full disk: the run has worse to report
            if path.stat().st_size:
                logs.mkdir(parents=True, exist_ok=True)
                with open(path, "rb") as printed, open(logs / f"{path.stem}_output.txt", "ab") as kept:
                    shutil.copyfileobj(printed, kept)
