"""The verdict on a run, in words that programs can rely on, and how to name ranks in a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass

from samestep.doctor.why.evidence import Evidence

VERDICTS = {
    "running": "it is still at work",
    "finished": "all its stages are done",
    "waiting": "the stage that it should do is done",
    "preempted": "it was asked to stop, and did, in good order",
    "crashed": "a rank failed in a way that nobody foresaw",
    "hung": "nothing moved for longer than the limit",
    "out_of_memory": "a rank needed more memory than there was",
    "killed": "ended from outside, without a word: by a user, a scheduler, or with its machine",
    "diverged": "figures were not finite any more, or ranks held different parameters",
    "disk": "its state could not be written",
    "user_error": "a mistake that the user can mend",
    "failed": "it could not go on, and says why",
    "not_started": "no rank of it has begun",
}
"""All verdicts there are."""


@dataclass(frozen=True)
class Finding:
    """What became of a run."""

    verdict: str
    sentence: str
    next: Sequence[str] = ()
    """What to type."""
    ranks: Sequence[int] = ()
    """Those it began with, as far as is known."""
    host: str = ""
    reason: str = ""
    """The signal, the scheduler's word, the limit, or the place in the source."""
    traceback: str = ""
    source: str = ""
    """The file that says so."""

    def __post_init__(self) -> None:
        """Nobody invents a word."""
        assert self.verdict in VERDICTS, self.verdict


def named(evidence: Evidence, ranks: Sequence[int], host: str = "") -> str:
    """`rank 1 on node2`, `ranks 0, 2 and 3`, `every rank`."""
    if not ranks or len(ranks) == evidence.world > 1:
        return "every rank"
    if len(ranks) == 1:
        return f"rank {ranks[0]} on {host}" if host else f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def place(evidence: Evidence) -> str:
    """` at step 7 of 100 of stage fit`, as far as is known; with a space before it."""
    status = evidence.status
    if "stage" not in status:
        return " before its first step"
    step = evidence.step if evidence.step is not None else status.get("step")
    return f" at step {step} of {status.get('steps', '?')} of stage {status['stage']}"
