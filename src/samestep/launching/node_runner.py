"""Runs the ranks of this node, attempt after attempt; keeps what they print and prints what happened."""

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from samestep.core import exit_report, launch_env
from samestep.core.child_python import python_command
from samestep.core.errors import EXIT_DONE, EXIT_PREEMPTED
from samestep.core.imports import uncollected_imports
from samestep.core.json_files import JsonLines
from samestep.core.rundir import RunDir
from samestep.core.safe_files import open_file
from samestep.core.status import set_failed, set_stopped
from samestep.launching.assignment import AttemptDeadline, NodeAssignment
from samestep.launching.failure import Failure, exit_report_of, headline
from samestep.launching.restart_policy import Decision
from samestep.launching.stop_requests import StopRequests
from samestep.launching.terminal import ranks_ended, show_line


class NodeRunner:
    """The attempts of one launch on this node."""

    def __init__(self, args: Sequence[str], nproc: int, folder: Path, stop: StopRequests) -> None:
        self.args, self.nproc, self.stop = args, nproc, stop
        self.needs_folder = False
        """Whether the output of the ranks is only in `folder`."""
        self.shows_all = False
        """Whether the launchers of other nodes are silent, so that all is printed here."""
        self.is_silent = False
        """Whether another launcher prints what happens here."""
        self._folder = folder
        self._number = 0
        self._ranks = range(nproc)

    def attempt(self, assignment: NodeAssignment, batch_size: int | None, deadline: AttemptDeadline) -> list[Failure]:
        """One attempt, with another batch_size than the command's if one is given; the ranks that did not end well."""
        with uncollected_imports():
            from samestep.launching.attempt import run_attempt

        self._number += 1
        self._ranks = range(assignment.first_rank, assignment.first_rank + self.nproc)
        outputs = self._folder / f"attempt_{self._number}"
        smaller = [f"--batch_size={batch_size:d}"] if batch_size else []
        command = python_command("-u", *self.args, *smaller)
        failures = run_attempt(command, self.nproc, assignment, outputs, self.stop, deadline)
        run = launch_env.read_run_path(self._folder)
        if run is not None:
            _keep_outputs(outputs, run / "logs")
        ranks_ended(self._folder)
        return failures

    def show(self, decision: Decision) -> None:
        """Print what happened: the first rank that failed, with its traceback if it is on this node."""
        without_save = self._record(decision)
        if self.is_silent:
            return
        first = decision.first
        if first is not None:
            show_line(headline(first, brief=not self.shows_all and first.rank not in self._ranks))
            exit_report.write_failure(self._folder, exit_report_of(first))
            if not first.is_user_error:
                run = launch_env.read_run_path(self._folder)
                self.needs_folder = run is None
                notify(f"the logs of all ranks are in {run / 'logs' if run else self._folder}")
        if decision.message:
            notify(decision.message)
        elif without_save:
            notify(f"stopped by {self._reason}, without a save")
        elif decision.code == EXIT_PREEMPTED and launch_env.read_run_path(self._folder) is None:
            notify(f"stopped by {self._reason} before training began; there is no run yet")

    @property
    def _reason(self) -> str:
        return self.stop.reason.name if self.stop.reason else "a signal to one of the ranks"

    def _record(self, decision: Decision) -> bool:
        """Append it to the run's events unless the run is done; only on the node of rank 0, which has the directory.

        The status is set too where no attempt follows: a rank 0 that was killed has left it at "running", and the
        others know no more than that a connection broke. Returns whether the run was stopped without saying so itself.
        """
        run = launch_env.read_run_path(self._folder)
        if run is None or decision.code == EXIT_DONE or 0 not in self._ranks:
            return False
        rundir, signal = RunDir(run), self.stop.reason.name if self.stop.reason else ""
        with suppress(OSError):
            JsonLines(rundir.events).append({"time": time.time(), **decision.event(), "signal": signal})
            if decision.code == EXIT_PREEMPTED:
                return set_stopped(rundir, self._reason)
            if decision.code is not None:
                set_failed(rundir, decision.end_report())
        return False


def notify(sentence: str) -> None:
    """Print a message of the launcher to the user."""
    show_line(f"samestep: {sentence}")


def _keep_outputs(source: Path, logs: Path) -> None:
    """Append what ranks wrote to files instead of the terminal to the run's logs, attempt after attempt."""
    for path in sorted([*source.glob("rank_*.out"), *source.glob("rank_*.err")]):
        with suppress(OSError):  # a full disk, which the run reports itself
            if path.stat().st_size:
                logs.mkdir(parents=True, exist_ok=True)
                with open(path, "rb") as printed, open_file(logs / f"{path.stem}_output.txt", "ab") as kept:
                    shutil.copyfileobj(printed, kept)
