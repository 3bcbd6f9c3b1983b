"""Ranks that wait for each other in different collectives: which of them left one out? Pure functions over reports.

A rank that is late is behind in every group. Where one rank is ahead in one group and behind in another, or where two
began different collectives as the same one, they took different ways. What usually followed the last collective that
both began tells which of them left its way.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

Report = dict[str, Any]
Row = tuple[str, int, str]
"""Group, number in it, and what it was."""


def skipped(reports: Sequence[Report]) -> tuple[Report, str, Report] | None:
    """The rank that left out a collective, which one it was, and a rank that waits in it; None: not so, or unknown."""
    first = reports[0]
    for other in reports[1:]:
        parted = _parted(_rows(first), _rows(other))
        if parted is None:
            continue
        history, mine, theirs = parted
        usual = _follows(history, mine[2]) - _follows(history, theirs[2])
        if usual:
            return (other, mine[2], first) if usual > 0 else (first, theirs[2], other)
    return None


def _rows(report: Report) -> list[Row]:
    """Saves run beside the training, so their place among its collectives means nothing."""
    return [(group, number, what) for group, number, what in report.get("recent", []) if group != "saves"]


def _parted(mine: Sequence[Row], theirs: Sequence[Row]) -> tuple[list[str], Row, Row] | None:
    """What both began, in this order, and what each began next that the other did not."""
    known, own = set(theirs), set(mine)
    new, foreign = [row for row in mine if row not in known], [row for row in theirs if row not in own]
    oldest = {group: min(n for g, n, _ in theirs if g == group) for group in {row[0] for row in theirs}}
    new = [row for row in new if row[1] >= oldest.get(row[0], 0)]  # the other's list may not reach so far back
    oldest = {group: min(n for g, n, _ in mine if g == group) for group in {row[0] for row in mine}}
    foreign = [row for row in foreign if row[1] >= oldest.get(row[0], 0)]
    if not new or not foreign:
        return None
    return [row[2] for row in mine[: mine.index(new[0])]], new[0], foreign[0]


def _follows(history: Sequence[str], what: str) -> int:
    """How often `what` came after what came last."""
    return sum(before == history[-1] and after == what for before, after in pairwise(history))
