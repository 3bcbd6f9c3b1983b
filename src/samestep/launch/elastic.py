"""Launch on this machine: start the ranks, show the first failure, restart from the last checkpoint.

An attempt is one run of torch's elastic agent (`agent.py`). Restarting is done here, because the agent restarts on any
exit code, and a run that was preempted, or that the user must mend, is not to be restarted.
"""

import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from samestep.core import handover
from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_PREEMPTED, UserError
from samestep.core.parent import stop_with
from samestep.core.terminal import put
from samestep.launch.failure import Failure, cause, headline, last_word
from samestep.launch.requests import StopRequests

GRACE = 30.0
"""Seconds that workers have to stop in good order."""
_FORCED = 15.0
"""Seconds beyond the grace time in which a launcher whose own parent is gone must have ended everything."""


@dataclass(frozen=True)
class Launch:
    """A Python command line to run as the ranks of one run, as often as it takes."""

    words: Sequence[str]
    """What comes after `python`."""
    nproc: int
    max_restarts: int = 0
    grace: float = GRACE
    folder: Path | None = None
    """Where the ranks leave word and output; by default a temporary folder, kept only when it is needed."""
    launch_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self) -> int:
        """All attempts; returns the exit code of the whole: 0 done, 2 user error, 75 preempted and resumable."""
        folder = self.folder or Path(tempfile.mkdtemp(prefix="samestep-launch-"))
        parent = os.environ.get(handover.PARENT)
        with StopRequests(self.grace) as stop, _variables(self._environment(folder)):
            if parent is not None:  # another program started this one, and may end before it
                stop_with(int(parent), self.grace + _FORCED, at_once=False)
            attempts = _Attempts(self, folder, stop)
            code = attempts.run()
        if self.folder is None and not attempts.needs_folder:
            shutil.rmtree(folder, ignore_errors=True)
        return code

    def _environment(self, folder: Path) -> Mapping[str, str]:
        return {
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, _cores() // self.nproc)),
            "PYTHONFAULTHANDLER": os.environ.get("PYTHONFAULTHANDLER") or "1",  # a crash shows where
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "",  # the agent leaves signals to us
            handover.LAUNCHER: "local",
            handover.LAUNCH_ID: self.launch_id,
            handover.FOLDER: str(folder),
            handover.PARENT: str(os.getpid()),
            handover.GRACE: str(self.grace),
        }


class _Attempts:
    """The attempts of one launch."""

    def __init__(self, launch: Launch, folder: Path, stop: StopRequests) -> None:
        self.needs_folder = False
        self._launch, self._folder, self._stop = launch, folder, stop
        self._number = 0
        self._restarts = 0
        self._remedy: Sequence[str] = ()

    def run(self) -> int:
        """Try until it is done or there is no point in another attempt."""
        while True:
            if self._stop.reason is not None:
                return EXIT_PREEMPTED  # before anything was started
            code = self._judge(self._attempt())
            if code is not None:
                return code

    def _attempt(self) -> list[Failure]:
        from samestep.launch.agent import attempt

        self._number += 1
        outputs = self._folder / f"attempt_{self._number}"
        command = [sys.executable, "-u", *self._launch.words, *self._remedy]
        failures = attempt(command, self._launch.nproc, self._launch.launch_id, outputs, self._stop)
        run = handover.told_run(self._folder)
        if run is not None:
            _keep_outputs(outputs, run / "logs")
        if failures and sys.stdout.isatty():
            put("\r\x1b[2K\x1b[?25h", sys.stdout, end="")  # a killed rank 0 leaves half a bar and no cursor
        return failures

    def _judge(self, failures: Sequence[Failure]) -> int | None:
        """The exit code of the launch, or None for another attempt; says what happened."""
        if self._stop.at_once:
            _say("interrupted twice: all ranks were ended at once, without a save")
            return EXIT_INTERRUPTED
        if not failures:
            return EXIT_DONE
        first = cause(failures)
        if first.is_stop or (self._stop.reason is not None and first.code < 0):
            return self._stopped(failures)
        self._show(first)
        code = max(first.code, EXIT_FAILURE)
        if self._stop.reason is not None or first.is_user_error:
            return code
        if first.word and first.word.remedy:
            self._remedy = first.word.remedy
            _say(f"restarting from the last checkpoint {first.word.remedy_text}")
            return None
        if first.is_memory or self._restarts >= self._launch.max_restarts:
            return code
        self._restarts += 1
        _say(f"restarting from the last checkpoint (restart {self._restarts} of {self._launch.max_restarts})")
        return None

    def _stopped(self, failures: Sequence[Failure]) -> int:
        late = sorted(failure.rank for failure in failures if failure.ended_by_us)
        if self._stop.reason is not None and late:
            _say(
                f"rank {', '.join(map(str, late))} did not stop within {self._launch.grace:g} s and was ended; "
                "the run resumes from its last checkpoint"
            )
        return EXIT_PREEMPTED

    def _show(self, first: Failure) -> None:
        """The headline: the first failing rank and its traceback; for all else there are the logs."""
        put(headline(first), sys.stderr)
        handover.tell_failure(self._folder, last_word(first))
        if not first.is_user_error:
            run = handover.told_run(self._folder)
            self.needs_folder = run is None
            _say(f"the logs of all ranks are in {run / 'logs' if run else self._folder}")


def how_many(text: str) -> int:
    """How many workers `--nproc` asks for; `auto` is one for each GPU, or two on a CPU of several cores."""
    if text == "auto":
        import torch

        return torch.cuda.device_count() or torch.xpu.device_count() or min(2, _cores())
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"--nproc must be auto or a whole number of at least 1, not {text!r}")
    return int(text)


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _keep_outputs(source: Path, logs: Path) -> None:
    """What ranks printed that did not go to the terminal lies with the run's logs, attempt after attempt."""
    for path in sorted([*source.glob("rank_*.out"), *source.glob("rank_*.err")]):
        with suppress(OSError):  # a full disk: the run has worse to report
            if path.stat().st_size:
                logs.mkdir(parents=True, exist_ok=True)
                with open(path, "rb") as printed, open(logs / f"{path.stem}_output.txt", "ab") as kept:
                    shutil.copyfileobj(printed, kept)


def _say(sentence: str) -> None:
    put(f"samestep: {sentence}", sys.stderr)


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Variables that the workers inherit; this process has its own back afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
