"""What follows from how an attempt ended: the end of the launch with its exit code, or another attempt."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_PREEMPTED
from samestep.core.exit_report import ExitReport
from samestep.core.json_files import Json
from samestep.launching.failure import Failure, cause, exit_report_of, headline


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended, on all nodes."""

    failures: Sequence[Failure]
    stopped: bool = False
    """A stop was requested before."""
    at_once: bool = False
    """Ctrl-C was pressed twice."""
    lost: str = ""
    """Nodes that were lost, and how."""
    remaining: str = ""
    """How many nodes can go on without them, as text; empty: too few."""
    joined: str = ""
    """Nodes for which the ranks were asked to stop, so that they can take part."""


@dataclass(frozen=True)
class Decision:
    """What to do next, and the message about it."""

    code: int | None
    """The exit code of the launch; None: another attempt."""
    first: Failure | None = None
    """What to show as the cause."""
    message: str = ""
    batch_size: int | None = None
    """The smaller batch_size of all further attempts, against a lack of memory; None: that of the command."""

    def end_report(self) -> ExitReport:
        """Why the launch ended, if not well: the report of the rank that caused it, or the message."""
        if self.first is None:
            return ExitReport(self.message, self.code or EXIT_FAILURE)
        text = headline(self.first, brief=True).removeprefix("samestep: ")  # names the rank
        return replace(exit_report_of(self.first), text=text)

    def event(self) -> dict[str, Json]:
        """For the run's events: how the attempt ended, also of ranks that could not write an exit report."""
        first, report = self.first, exit_report_of(self.first) if self.first else None
        return {
            "kind": "ended",
            "rank": first.rank if first else None,
            "host": first.host if first else "",
            "code": first.code if first else self.code,
            "text": report.text if report else self.message,
            "restart": self.code is None,
            "word": asdict(report) if report else None,
        }


class RestartPolicy:
    """Decides what follows, and counts restarts. torch's own agent would restart on any exit code, even if in vain."""

    def __init__(self, max_restarts: int, grace: float) -> None:
        self._max_restarts, self._grace = max_restarts, grace
        self._restarts = 0
        self._batch_size: int | None = None

    def decide(self, end: AttemptEnd) -> Decision:
        """What follows; a smaller batch_size stays in force."""
        decision = self._decide(end)
        self._batch_size = decision.batch_size or self._batch_size
        return replace(decision, batch_size=self._batch_size)

    def _decide(self, end: AttemptEnd) -> Decision:
        if end.at_once:
            return Decision(EXIT_INTERRUPTED, message="interrupted twice: all ranks were ended at once, without a save")
        if not end.failures:
            return self._without_failures(end)
        first = cause(end.failures)
        if first.is_stop or (end.stopped and (first.code < 0 or first.code == EXIT_INTERRUPTED)):
            return self._stopped(end)
        if end.lost and not first.is_user_error:  # the other ranks failed only because of it
            return self._lost(end)
        code = max(first.code, EXIT_FAILURE)
        if end.stopped or first.is_user_error:
            return Decision(code, first)
        if first.report and first.report.retry_batch_size:
            message = f"restarting from the last checkpoint {first.report.retry_text}"
            return Decision(None, first, message, first.report.retry_batch_size)
        if first.is_memory or self._restarts >= self._max_restarts:
            return Decision(code, first)
        return Decision(None, first, f"restarting from the last checkpoint ({self._count_restart()})")

    def _without_failures(self, end: AttemptEnd) -> Decision:
        """No rank reported a failure; if all ranks were on lost nodes, none could."""
        return self._lost(end) if end.lost and not end.stopped else Decision(EXIT_DONE)

    def _stopped(self, end: AttemptEnd) -> Decision:
        late = sorted(failure.rank for failure in end.failures if failure.ended_by_us)
        message = (
            f"rank {', '.join(map(str, late))} did not stop within {self._grace:g} s and was ended; "
            "the run resumes from its last checkpoint"
        )
        if end.stopped:
            return Decision(EXIT_PREEMPTED, message=message if late else "")
        if end.lost:
            return self._lost(end)
        if end.joined:
            return Decision(None, message=f"{end.joined}; going on from the last checkpoint")
        return Decision(EXIT_PREEMPTED)

    def _lost(self, end: AttemptEnd) -> Decision:
        if end.remaining:
            return Decision(None, message=f"{end.lost}; going on with {end.remaining} from the last checkpoint")
        if self._restarts >= self._max_restarts:
            return Decision(EXIT_FAILURE, message=f"{end.lost}; the run can be resumed with --resume")
        return Decision(
            None, message=f"{end.lost}; waiting for another node to take its place ({self._count_restart()})"
        )

    def _count_restart(self) -> str:
        self._restarts += 1
        return f"restart {self._restarts} of {self._max_restarts}"
