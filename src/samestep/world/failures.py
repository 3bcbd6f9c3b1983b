"""Failures that ranks tell each other."""

from collections.abc import Sequence

from samestep.core.errors import RunFailed, UserError
from samestep.core.json_files import Json

FAILURE_KEY = "samestep/failure"
"""The store's key for the report of the first rank that failed."""


class PeerFailed(Exception):
    """Another rank failed first; its message and its exit code are ours too."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def failure_sentence(error: BaseException) -> str:
    """What a failure says to other ranks."""
    return str(error) if isinstance(error, UserError | RunFailed) else f"{type(error).__name__}: {error}"


def failure_record(error: Exception, rank: int) -> dict[str, Json]:
    """A failure, for the other ranks."""
    return {"user": isinstance(error, UserError), "text": failure_sentence(error), "rank": rank}


def raise_first(outcomes: Sequence[dict[str, Json]], own: Exception | None, doing: str) -> None:
    """Raise the failure of the first of these that failed; `own` is that of this rank."""
    report = next((outcome for outcome in outcomes if "text" in outcome), None)
    if report is None:
        return
    if own is not None and not isinstance(own, OSError | UserError | RunFailed):
        raise own  # a bug: its traceback is worth more than the same message on all ranks
    if report["user"]:
        raise UserError(report["text"]) from own
    raise RunFailed(f"{doing} failed on rank {report['rank']}: {report['text']}") from own
