"""Who keeps a run from going on: pure functions over what every rank was seen doing.

A rank that is late is behind in every group. Where one rank is ahead in one group and behind in another, or where two
began different collectives as the same one, one of them skipped a collective. What usually followed the last collective
that both began tells which.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from samestep.core.records import Json
from samestep.world.watchdog.limits import ACTIVITIES

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


"""What one rank does (see sight.py). `alive`: whether its watchdog was just heard; `state`: what else is known of one
that was not: stopped, held, gone."""


@dataclass(frozen=True)
class Stall:
    """A run that does not go on."""

    sentence: str
    culprit: Report | None
    """None where no rank is behind the others."""
    reports: Sequence[Report]

    def to_json(self) -> dict[str, Json]:
        """As all ranks and the run directory get it; `speaker` is the lowest rank alive, who tells the user."""
        told = {name: (self.culprit or {}).get(name) for name in ("rank", "host", "where", "activity", "step")}
        alive = [report["rank"] for report in self.reports if report["alive"]]
        reports = [{name: value for name, value in report.items() if name != "recent"} for report in self.reports]
        return {"time": time.time(), "sentence": self.sentence, **told, "speaker": min(alive), "reports": reports}


def judge(mine: Report, reports: Sequence[Report]) -> Stall | None:
    """Whether a run hangs in which this rank made no progress for longer than its limit; None: not yet.

    Whoever waits is only the one who notices. As long as the rank that it waits for keeps to its own limit, or goes on,
    nothing hangs.
    """
    if left_out := skipped(reports) if all(report["alive"] for report in reports) else None:
        return Stall(_skipper(*left_out), left_out[0], reports)
    blamed = _behind(mine, reports)
    if not blamed:
        return Stall(_nobody(mine, reports), None, reports)
    first = blamed[0]
    spent = first["seconds"] if first["alive"] else mine["seconds"]
    if spent <= first["limit"]:
        return None
    return Stall(_somebody(first, blamed, reports), first, reports)


def _behind(mine: Report, reports: Sequence[Report]) -> list[Report]:
    """Ranks that the others wait for, the one furthest behind first."""
    silent = [report for report in reports if not report["alive"]]
    if silent:
        return sorted(silent, key=lambda report: (sum(report["collectives"].values()), report["rank"]))
    if len(reports) == 1:
        return list(reports)
    for group in _groups(mine):
        counts = {report["rank"]: report["collectives"].get(group, 0) for report in reports}
        if len(set(counts.values())) > 1:
            least = min(counts.values())
            return [report for report in reports if counts[report["rank"]] == least]
    busy = [report for report in reports if not report["waits"]]
    return busy if len(busy) < len(reports) else []


def _groups(mine: Report) -> list[str]:
    """Groups in the order in which they tell who is behind: of a save, its own first."""
    names = list(mine["collectives"])
    return sorted(names, key=lambda name: name != "saves") if mine["activity"] == "save" else names


def _somebody(first: Report, blamed: Sequence[Report], reports: Sequence[Report]) -> str:
    ranks = {report["rank"] for report in blamed}
    others = [report for report in reports if report["rank"] not in ranks and report["alive"]]
    also = f" (and {_ranks(blamed[1:])} with it)" if len(blamed) > 1 else ""
    return _subject(first) + also + (f"; {_waiting(first, others)}" if others else "")


def _skipper(report: Report, lacking: str, other: Report) -> str:
    at = f" at {report['where']}" if report["where"] else ""
    waits = f" at {other['where']}" if other["where"] else ""
    return (
        f"rank {report['rank']} on {report['host']} left out a collective that it began before, {lacking}; "
        f"it waits{at} {_when(report)}, and rank {other['rank']} waits for it{waits}"
    )


def _subject(report: Report) -> str:
    who = f"rank {report['rank']} on {report['host']}"
    doing, at = ACTIVITIES[report["activity"]], f" at {report['where']}" if report["where"] else ""
    when = _when(report)
    if report["alive"]:
        return f"{who} has been {doing} for {report['seconds']:.0f} s{at} {when}"
    state = report.get("state", "")
    if state == "held":
        return f"{who} holds the interpreter{at}"
    seen = f"it was last seen {doing}{at} {when}"
    if state == "stopped":
        return f"{who} was stopped by a signal (SIGSTOP); {seen}"
    if state == "gone":
        return f"{who} is gone without a word; {seen}"
    return f"{who} gives no sign of life, so it is stopped or gone, or its host is out of reach; {seen}"


def _waiting(first: Report, others: Sequence[Report]) -> str:
    """What the others wait for, by the example of the first of them."""
    one = others[0]
    who = f"rank {one['rank']} waits" if len(others) == 1 else f"the {len(others)} others wait"
    at = f" at {one['where']}" if one["where"] else ""
    return f"{who} for it{at}{_counts(first, one)}"


def _counts(first: Report, other: Report) -> str:
    """How far the two have come in collectives."""
    if not first["alive"]:
        return ""  # how far it came since it was last heard is not known
    theirs, own = other["collectives"], first["collectives"]
    ahead = [name for name in theirs if theirs[name] > own.get(name, 0)]
    if not ahead:
        return ""
    name, begun = ahead[0], own.get(ahead[0], 0)
    return f", in collective {theirs[name]} of group {name}, of which rank {first['rank']} has begun {begun}"


def _nobody(mine: Report, reports: Sequence[Report]) -> str:
    at = f" at {mine['where']}" if mine["where"] else ""
    return (
        f"{_ranks(reports)} have made no progress for {mine['seconds']:.0f} s while {ACTIVITIES[mine['activity']]}{at} "
        f"{_when(mine)}, and none is behind the others in collectives: "
        "the network between them may be broken; `samestep doctor --test all` under the same launcher tries it"
    )


def _when(report: Report) -> str:
    return f"(step {report['step']} of stage {report['stage']!r})" if report["stage"] else "(before the first stage)"


def _ranks(reports: Sequence[Report]) -> str:
    numbers = sorted(report["rank"] for report in reports)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > 4:
        return f"{len(numbers)} ranks"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
