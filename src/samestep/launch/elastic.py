"""Launch on this machine: start the ranks, show the first failure, restart from the last checkpoint.

An attempt is one run of torch's elastic agent (`agent.py`). Restarting is done here, because the agent restarts on any
exit code, and a run that was preempted or that the user must mend must not be restarted.
"""

import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from samestep.core import handover
from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_PREEMPTED, UserError
from samestep.core.parent import stop_with
from samestep.launch.failure import Failure, cause, headline, last_word
from samestep.launch.requests import StopRequests

GRACE = 30.0
"""Seconds that workers have to stop in good order."""
_FORCED = 15.0
"""Seconds beyond the grace time in which a launcher whose own parent is gone must have ended everything."""


@dataclass
class Launch:
    """A Python command line to run as the ranks of one run, as often as it takes."""

    words: Sequence[str]
    """What comes after `python`."""
    nproc: int
    max_restarts: int = 0
    grace: float = GRACE
    folder: Path | None = None
    """Where the ranks leave word and output; by default a temporary folder."""
    launch_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self) -> int:
        """All attempts; returns the exit code of the whole: 0 done, 2 user error, 75 preempted and resumable."""
        folder = self.folder or Path(tempfile.mkdtemp(prefix="samestep-launch-"))
        with StopRequests(self.grace) as stop, _variables(self._environment(folder)):
            if handover.PARENT in os.environ:  # started by another program, which may end before this one
                stop_with(int(os.environ[handover.PARENT]), self.grace + _FORCED, at_once=False)
            os.environ[handover.PARENT] = str(os.getpid())
            code = _Attempts(self, folder, stop).run()
        if self.folder is None and handover.told_run(folder) is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return code

    def _environment(self, folder: Path) -> Mapping[str, str]:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return {
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, cores // self.nproc)),
            "PYTHONFAULTHANDLER": os.environ.get("PYTHONFAULTHANDLER") or "1",
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "",  # the agent leaves signals to us
            handover.LAUNCHER: "local",
            handover.LAUNCH_ID: self.launch_id,
            handover.FOLDER: str(folder),
            handover.GRACE: str(self.grace),
        }


class _Attempts:
    """The attempts of one launch."""

    def __init__(self, launch: Launch, folder: Path, stop: StopRequests) -> None:
        self.launch, self.folder, self.stop = launch, folder, stop
        self.restarts = 0
        self.number = 0
        self.smaller: list[str] = []  # a micro-batch that fits

    def run(self) -> int:
        """Attempt until it is done or there is no point in another one."""
        while True:
            if self.stop.reason is not None:  # before anything was started
                return EXIT_PREEMPTED
            failures = self._attempt()
            code = self._judge(failures)
            if code is not None:
                return code

    def _attempt(self) -> list[Failure]:
        from samestep.launch.agent import attempt

        self.number += 1
        output = self.folder / f"attempt_{self.number}"
        command = [sys.executable, "-u", *self.launch.words, *self.smaller]
        failures = attempt(command, self.launch.nproc, self.launch.launch_id, output, self.stop)
        run = handover.told_run(self.folder)
        if run is not None:
            _keep_outputs(output, run / "logs")
        return failures

    def _judge(self, failures: Sequence[Failure]) -> int | None:
        """The exit code of the launch, or None to try again. Says what happened."""
        if self.stop.at_once:
            _say("samestep: interrupted twice: all ranks were ended at once, without a save")
            return EXIT_INTERRUPTED
        if not failures:
            return EXIT_DONE if self.stop.reason is None ...
