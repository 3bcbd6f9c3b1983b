"""What follows from how an attempt ended: the end of the launch with its exit code, or another attempt."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_PREEMPTED
from samestep.core.records import Json
from samestep.launch.failure import Failure, cause, last_word


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended, on all nodes."""

    failures: Sequence[Failure]
    stopped: bool = False
    """A request to stop came before."""
    at_once: bool = False
    """Somebody pressed Ctrl-C twice."""
    lost: str = ""
    """Nodes that left without a word, and how."""
    remaining: str = ""
    """How many nodes can go on without them; empty: too few."""
    joined: str = ""
    """Nodes for which the ranks were asked to stop, so that they can take part."""


@dataclass(frozen=True)
class Decision:
    """What to do next, and what to say."""

    code: int | None
    """The exit code of the launch; None: another attempt."""
    first: Failure | None = None
    """What to show as the cause."""
    said: str = ""
    remedy: Sequence[str] = ()
    """Words for the command line of all further attempts."""

    def event(self) -> dict[str, Json]:
        """For the run's events: how the attempt ended, also for ranks that could not say so themselves."""
        first, word = self.first, last_word(self.first) if self.first else None
        return {
            "kind": "ended",
            "rank": first.rank if first else None,
            "host": first.host if first else "",
            "code": first.code if first else self.code,
            "text": word.text if word else self.said,
            "restart": self.code is None,
            "word": asdict(word) if word else None,
        }

    def to_json(self) -> dict[str, Json]:
        """As plain data, for another node."""
        first = self.first.to_json() if self.first else None
        return {"code": self.code, "first": first, "said": self.said, "remedy": list(self.remedy)}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> "Decision":
        """What `to_json` gave."""
        first = Failure.from_json(data["first"]) if data["first"] else None
        return cls(data["code"], first, data["said"], data["remedy"])


class RestartPolicy:
    """Restarts are counted here: torch's own agent restarts on any exit code, also what cannot succeed."""

    def __init__(self, max_restarts: int, grace: float) -> None:
        self._max_restarts, self._grace = max_restarts, grace
        self._restarts = 0
        self._remedy: Sequence[str] = ()

    def verdict(self, ended: AttemptEnd) -> Decision:
        """What follows; whatever helped against a lack of memory stays in force."""
        found = self._verdict(ended)
        self._remedy = found.remedy or self._remedy
        return replace(found, remedy=self._remedy)

    def _verdict(self, ended: AttemptEnd) -> Decision:
        if ended.at_once:
            return Decision(EXIT_INTERRUPTED, said="interrupted twice: all ranks were ended at once, without a save")
        if not ended.failures:
            return self._without_failures(ended)
        first = cause(ended.failures)
        if first.is_stop or (ended.stopped and first.code < 0):
            return self._stopped(ended)
        if ended.lost and not first.is_user_error:  # those who remain failed only because of it
            return self._lost(ended)
        code = max(first.code, EXIT_FAILURE)
        if ended.stopped or first.is_user_error:
            return Decision(code, first)
        if first.word and first.word.remedy:
            said = f"restarting from the last checkpoint {first.word.remedy_text}"
            return Decision(None, first, said, first.word.remedy)
        if first.is_memory or self._restarts >= self._max_restarts:
            return Decision(code, first)
        return Decision(None, first, f"restarting from the last checkpoint ({self._count()})")

    def _without_failures(self, ended: AttemptEnd) -> Decision:
        """No rank failed; but if all those of a run sat on lost nodes, none is left to say so."""
        return self._lost(ended) if ended.lost and not ended.stopped else Decision(EXIT_DONE)

    def _stopped(self, ended: AttemptEnd) -> Decision:
        late = sorted(failure.rank for failure in ended.failures if failure.ended_by_us)
        said = (
            f"rank {', '.join(map(str, late))} did not stop within {self._grace:g} s and was ended; "
            "the run resumes from its last checkpoint"
        )
        if ended.stopped:
            return Decision(EXIT_PREEMPTED, said=said if late else "")
        if ended.lost:
            return self._lost(ended)
        if ended.joined:
            return Decision(None, said=f"{ended.joined}; going on from the last checkpoint")
        return Decision(EXIT_PREEMPTED)

    def _lost(self, ended: AttemptEnd) -> Decision:
        if ended.remaining:
            return Decision(None, said=f"{ended.lost}; going on with {ended.remaining} from the last checkpoint")
        if self._restarts >= self._max_restarts:
            return Decision(EXIT_FAILURE, said=f"{ended.lost}; the run can be resumed with --resume")
        return Decision(None, said=f"{ended.lost}; waiting for another node to take its place ({self._count()})")

    def _count(self) -> str:
        self._restarts += 1
        return f"restart {self._restarts} of {self._max_restarts}"
