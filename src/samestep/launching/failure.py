"""Which rank failed first, and the message about it: pure functions over how the ranks of an attempt ended."""

import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from samestep.core.errors import EXIT_MEMORY, EXIT_PREEMPTED, EXIT_USER
from samestep.core.exit_report import ExitReport

_LINES = 60
"""How many lines of a traceback or of a rank's output are shown; its log has all."""
_CONSEQUENCES = (signal.SIGABRT, signal.SIGTERM)
"""Signals that may end a rank because another one failed."""


@dataclass(frozen=True)
class Failure:
    """How one rank ended, when not with 0."""

    rank: int
    code: int
    """The exit code; negative: the signal that ended it."""
    seen: float = 0.0
    """When the launcher noticed."""
    report: ExitReport | None = None
    printed: str = ""
    """The end of what the rank wrote to stderr, where that did not go to the terminal."""
    ended_by_us: bool = False
    host: str = field(default_factory=socket.gethostname)

    @property
    def is_stop(self) -> bool:
        """Stopped in good order."""
        return self.code == EXIT_PREEMPTED

    @property
    def is_user_error(self) -> bool:
        """Something the user must fix: another attempt would end in the same way."""
        return self.code == EXIT_USER

    @property
    def is_memory(self) -> bool:
        """Out of memory: a smaller micro-batch may fit."""
        return self.code == EXIT_MEMORY

    @property
    def time(self) -> float:
        """When the rank failed, from its exit report if there is one."""
        return self.report.time if self.report else self.seen

    def shifted(self, seconds: float) -> "Failure":
        """The same in the time of a clock that is so many seconds ahead."""
        report = self.report and replace(self.report, time=self.report.time + seconds)
        return replace(self, seen=self.seen + seconds, report=report)


def cause(failures: Sequence[Failure]) -> Failure:
    """The failure that caused the others, or the stop that all agreed on."""
    stopped = any(failure.is_stop for failure in failures)
    return min(failures, key=lambda failure: _order(failure, stopped))


def _order(failure: Failure, stopped: bool) -> tuple[int, float, int]:
    """Killed from outside; a failure of its own, the earliest first; a stop; mere consequences."""
    report = failure.report
    if failure.ended_by_us or (report and report.echo):
        return 4, failure.seen, failure.rank
    if report and report.kind == "hung":  # the rank that hung may have been killed by its neighbours
        return 0, 0.0, failure.rank
    if failure.is_stop:
        return 2, failure.seen, failure.rank
    if failure.code > 0:
        return 1, failure.time, failure.rank
    if stopped or -failure.code in _CONSEQUENCES:  # the run was saved before a rank died while ending
        return 3, failure.seen, failure.rank
    return 0, failure.seen, failure.rank  # no failure of another rank causes this


def exit_report_of(failure: Failure) -> ExitReport:
    """The exit report of the rank, or one made from its exit code."""
    if failure.report is not None:
        return failure.report
    if failure.code < 0:
        name = signal_name(-failure.code)
        hint = ", perhaps by the system because memory ran out" if name == "SIGKILL" and not failure.ended_by_us else ""
        text = f"was killed by {name}{hint}"
    else:
        text = f"ended with exit code {failure.code}"
    return ExitReport(text, failure.code, failure.rank, failure.host, traceback=failure.printed)


def headline(failure: Failure, *, brief: bool = False) -> str:
    """One sentence, and the traceback where there is one, unless `brief`."""
    report = exit_report_of(failure)
    if failure.report and (failure.is_user_error or report.kind == "hung"):  # the text names the rank that matters
        return f"samestep: {report.text}"
    first_line = (report.text.splitlines() or [""])[0] if report.traceback else report.text
    sentence = f"samestep: rank {report.rank} on {report.host} {'failed: ' if failure.report else ''}{first_line}"
    lines = [] if brief else report.traceback.rstrip().splitlines()
    shown = lines if len(lines) <= _LINES else [lines[0], "...", *lines[-_LINES:]]
    return "\n".join([sentence, *(f"  {line}" for line in shown)])


def signal_name(number: int) -> str:
    """SIGKILL for 9, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def tail(path: Path) -> str:
    """The last lines of what a rank printed; nothing where it printed to the terminal."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-_LINES:])
