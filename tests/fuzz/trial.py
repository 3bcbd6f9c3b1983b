"""What a trial of the fuzz can come to, and the table of all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from fuzz.command import Result

REFUSED, ACCEPTED, TRACEBACK, SILENT = "refused with a sentence", "accepted", "tracebacks", "silent acceptances"
OUTCOMES = (REFUSED, ACCEPTED, TRACEBACK, SILENT)
BAD = (TRACEBACK, SILENT)


@dataclass(frozen=True)
class Trial:
    """One input, and what came of it."""

    group: str
    """The row of the table that it belongs to."""
    label: str
    """What was tried, for the person who has to fix it."""
    outcome: str
    detail: str = ""
    """The output, where the outcome is a bad one."""


def judged(group: str, label: str, result: Result, *, is_right: bool = True) -> Trial:
    """The trial of a call; `is_right`: whether what it did, if it did something, is what it should do."""
    if result.is_refusal:
        return Trial(group, label, REFUSED)
    if result.has_crashed or result.code not in (0, 1):
        return Trial(group, label, TRACEBACK, f"exit code {result.code}\n{result.output[-3000:]}")
    return Trial(group, label, ACCEPTED) if is_right else Trial(group, label, SILENT, result.output[-3000:])


def table(trials: Sequence[Trial]) -> str:
    """The counts, one row per group."""
    rows = [["input", "trials", *OUTCOMES]]
    groups = list(dict.fromkeys(trial.group for trial in trials))
    for name in [*groups, "all"]:
        found = [trial.outcome for trial in trials if name in (trial.group, "all")]
        rows.append([name, str(len(found)), *(str(found.count(outcome)) for outcome in OUTCOMES)])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(rows[0]) - 1), *lines[1:]])
