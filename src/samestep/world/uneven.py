"""Whether a rank made other updates than the others: pure functions over the histories of all ranks' reports.

Gradients of the same network look alike, so a rank that leaves out an update, or makes one more, goes on for a while:
its gradients meet those of another step. The ranks hang many collectives later, at a line that has nothing to do with
it. What differs first is how many updates a step made.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samestep.core.output import plural

SAME_WAY = (
    "All ranks must make the same updates and collectives in the same order, so an `if` around them must not depend on "
    "the rank or on its rows"
)
_MOST_CHANGES = 3
"""How often a rank's updates may have changed from step to step for it to say what is usual."""
Lines = Mapping[tuple[str, str], int]
"""How many updates of which learner a step made from which line."""


@dataclass(frozen=True)
class UnevenUpdates:
    """The first step in which a rank made other updates than another."""

    odd: Mapping[str, Any]
    """The report of the rank that left the common way."""
    other: Mapping[str, Any]
    """That of a rank that did not."""
    step: int
    learner: str
    counts: tuple[int, int]
    """How many updates of the learner the two made in the step."""
    line: str
    """Where one of them made an update that the other did not make."""

    def __str__(self) -> str:
        """The first part of a sentence."""
        by_odd, by_other = self.counts
        made = plural(by_odd, "update") if by_odd else "no update"
        who = self.other if by_other > by_odd else self.odd
        return (
            f"rank {self.odd['rank']} on {self.odd['host']} made {made} of learner {self.learner!r} "
            f"at step {self.step} of stage {self.odd['stage']!r}, where rank {self.other['rank']} made "
            f"{by_other or 'none'} (rank {who['rank']} at {self.line})"
        )


def find_uneven(reports: Sequence[Mapping[str, Any]]) -> UnevenUpdates | None:
    """The rank that made other updates than the rest in the first step in which any did; None: none is known."""
    if len({report["stage"] for report in reports}) > 1 or not all(report.get("history") for report in reports):
        return None
    start = max(report["history"][0][0] for report in reports)
    changes = sorted({first for report in reports for first, _ in report["history"] if first >= start})
    for step in changes:
        there = [report for report in reports if report["history"][-1][0] >= step]
        done = [report for report in there if report["history"][-1][0] > step]
        for report in done:
            for other in there:
                if _differ(report, other, step, is_done=other in done):
                    return _describe(report, other, step, there)
    return None


def describe_updates(history: Sequence[Any]) -> str:
    """What a rank can say of its own updates (`UpdateHistory`) when they are not those of another; empty: nothing."""
    done = history[:-1]
    if not 1 <= len(done) <= _MOST_CHANGES:
        return ""
    usual_first, usual = max(zip(done, history[1:]), key=lambda pair: pair[1][0] - pair[0][0])[0]
    made = f"{_count(usual)} at {'every' if len(done) == 1 else 'other'} step{'s' if len(done) > 1 else ''}"
    odd = "".join(
        f"{_count(updates)} at step {first}, and "
        for first, updates in done
        if first != usual_first and updates != usual
    )
    lines = dict.fromkeys(line for _, updates in done for _, line, _ in updates)
    return f"it made {odd}{made} ({', '.join(lines)})" if lines else ""


def _count(updates: Sequence[Any]) -> str:
    total = sum(count for _, _, count in updates)
    return plural(total, "update") if total else "no update"


def _differ(report: Mapping[str, Any], other: Mapping[str, Any], step: int, *, is_done: bool) -> bool:
    """Whether two ranks made other updates in a step; one that is not through with it may make some more."""
    made, others = _by_learner(_lines(report, step)), _by_learner(_lines(other, step))
    return made != others if is_done else bool(others - made)


def _describe(
    first: Mapping[str, Any], second: Mapping[str, Any], step: int, there: Sequence[Mapping[str, Any]]
) -> UnevenUpdates:
    """Of two ranks that differ, the odd one is in the minority; of two alone, it is not like in the step before."""
    made = {report["rank"]: _by_learner(_lines(report, step)) for report in there}

    def is_common(report: Mapping[str, Any]) -> tuple[int, bool, int]:
        own = made[report["rank"]]
        like_before = own == _by_learner(_lines(report, step - 1))
        return sum(own == each for each in made.values()), like_before, own.total()

    odd, other = sorted((first, second), key=is_common)
    of_odd, of_other = _lines(odd, step), _lines(other, step)
    odd_counts, other_counts = _by_learner(of_odd), _by_learner(of_other)
    learner = next(name for name in {**odd_counts, **other_counts} if odd_counts[name] != other_counts[name])
    more, fewer = (of_other, of_odd) if other_counts[learner] > odd_counts[learner] else (of_odd, of_other)
    lines = [line for (name, line), count in more.items() if name == learner and count > fewer.get((name, line), 0)]
    return UnevenUpdates(odd, other, step, learner, (odd_counts[learner], other_counts[learner]), lines[-1])


def _lines(report: Mapping[str, Any], step: int) -> Lines:
    """The updates of one step of a rank; none where they are not known."""
    found = [rows for first, rows in report["history"] if first <= step]
    return {(learner, line): count for learner, line, count in (found[-1] if found else ())}


def _by_learner(lines: Lines) -> Counter[str]:
    counts: Counter[str] = Counter()
    for (learner, _), count in lines.items():
        counts[learner] += count
    return counts
