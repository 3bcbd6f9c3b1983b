"""Which rank keeps a run from going on: pure functions over the reports of all ranks.

A rank that made other updates than the rest is found from its history (uneven.py). A rank that is late is behind in
every group. Where one rank is ahead in one group and behind in another, or where two began different collectives under
the same number, one of them left the common way. Which one follows from what usually came after the last collective
that both began.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from samestep.core.json_files import Json
from samestep.core.output import plural
from samestep.world.uneven import SAME_WAY, UnevenUpdates, find_uneven
from samestep.world.watchdog.limits import ACTIVITIES

Report = dict[str, Any]
"""What one thread of a rank does (`stack_dump.thread_report`). `alive`: whether the rank's last heartbeat is fresh.
`state`: what else is known of a rank whose heartbeat is not: stopped, held (its interpreter), gone."""
Collective = tuple[str, int, str]
"""Group, number in it, and what it was."""


@dataclass(frozen=True)
class Stall:
    """A run that hangs."""

    sentence: str
    culprit: Report | None
    """None where no rank is behind the others."""
    reports: Sequence[Report]
    setting: str = ""
    """The setting with a longer limit for a run that is only slow; empty where waiting does not help."""

    @property
    def verdict(self) -> str:
        """The sentence with which the run ends."""
        return f"{self.sentence}; if it is only slow, raise {self.setting}" if self.setting else self.sentence

    def to_json(self) -> dict[str, Json]:
        """As all ranks and the run directory get it; `speaker` is the lowest rank alive, which prints the verdict."""
        culprit = {name: (self.culprit or {}).get(name) for name in ("rank", "host", "where", "activity", "step")}
        alive = [report["rank"] for report in self.reports if report["alive"]]
        left_out = ("recent", "history")
        reports = [{name: value for name, value in report.items() if name not in left_out} for report in self.reports]
        return {"time": time.time(), "sentence": self.verdict, **culprit, "speaker": min(alive), "reports": reports}


def find_stall(own: Report, reports: Sequence[Report]) -> Stall | None:
    """Whether a run hangs in which this rank made no progress for longer than its limit; None: not yet.

    A rank that waits is not to blame. As long as the rank that it waits for is within its own limit, or makes progress,
    nothing hangs.
    """
    if all(report["alive"] for report in reports):
        if uneven := find_uneven(reports):
            return Stall(_uneven_sentence(uneven), dict(uneven.odd), reports)
        if skipped := find_skipped(reports):
            return Stall(_skipped_sentence(*skipped), skipped[0], reports)
    blamed = _behind(own, reports)
    if not blamed:
        return Stall(_nobody_sentence(own, reports), None, reports, own["setting"])
    first = blamed[0]
    seconds = first["seconds"] if first["alive"] else own["seconds"]
    if seconds <= first["limit"]:
        return None
    may_be_slow = first["alive"] or first.get("state") == "held"
    return Stall(_blamed_sentence(first, blamed, reports), first, reports, first["setting"] if may_be_slow else "")


def find_skipped(reports: Sequence[Report]) -> tuple[Report, str, Report, str] | None:
    """The rank that left the common way and the collective that it began; a rank that did not, and what that began.

    None: none did, or unknown.
    """
    first = reports[0]
    for other in reports[1:]:
        difference = _first_difference(_collectives(first), _collectives(other))
        if difference is None:
            continue
        history, of_first, of_other = difference
        usual = _follows(history, of_first[2]) - _follows(history, of_other[2])
        at_update = _is_at_update(first) - _is_at_update(other)
        is_irregular = (of_first[0] == "control") != (of_other[0] == "control")  # messages come at varying steps
        if ((at_update or usual) if is_irregular else (usual or at_update)) < 0:
            return first, of_first[2], other, of_other[2]
        return other, of_other[2], first, of_first[2]
    return None


def _is_at_update(report: Report) -> bool:
    """Whether a rank waits where it makes its updates, as all ranks do in every step."""
    return any(line == report["where"] for _, updates in report.get("history", ()) for _, line, _ in updates)


def _collectives(report: Report) -> list[Collective]:
    """Without those of saves, which run in another thread, in no fixed order with those of the training."""
    return [(group, number, what) for group, number, what in report.get("recent", []) if group != "saves"]


def _first_difference(
    first: Sequence[Collective], other: Sequence[Collective]
) -> tuple[list[str], Collective, Collective] | None:
    """What both ranks began, in order, and what each began next that the other did not."""
    in_first, in_other = set(first), set(other)
    only_first = [each for each in first if each not in in_other and each[1] >= _oldest(other, each[0])]
    only_other = [each for each in other if each not in in_first and each[1] >= _oldest(first, each[0])]
    if not only_first or not only_other:
        return None
    return [each[2] for each in first[: first.index(only_first[0])]], only_first[0], only_other[0]


def _oldest(collectives: Sequence[Collective], group: str) -> int:
    """The lowest number in a group that a list has: another rank's list may reach further back."""
    return min((number for name, number, _ in collectives if name == group), default=0)


def _follows(history: Sequence[str], what: str) -> int:
    """How often `what` came after the last collective in `history`."""
    return sum(before == history[-1] and after == what for before, after in pairwise(history))


def _behind(own: Report, reports: Sequence[Report]) -> list[Report]:
    """Ranks that the others wait for, the one furthest behind first."""
    silent = [report for report in reports if not report["alive"]]
    if silent:
        return sorted(silent, key=lambda report: (sum(report["collectives"].values()), report["rank"]))
    if len(reports) == 1:
        return list(reports)
    for group in _groups(own):
        counts = {report["rank"]: report["collectives"].get(group, 0) for report in reports}
        if len(set(counts.values())) > 1:
            least = min(counts.values())
            return [report for report in reports if counts[report["rank"]] == least]
    busy = [report for report in reports if not report["waits"]]
    return busy if len(busy) < len(reports) else []


def _groups(own: Report) -> list[str]:
    """Groups in the order in which their counts decide who is behind: during a save, its own group first."""
    names = list(own["collectives"])
    return sorted(names, key=lambda name: name != "saves") if own["activity"] == "save" else names


def _blamed_sentence(first: Report, blamed: Sequence[Report], reports: Sequence[Report]) -> str:
    ranks = {report["rank"] for report in blamed}
    others = [report for report in reports if report["rank"] not in ranks and report["alive"]]
    also = f" (and {_ranks(blamed[1:])} with it)" if len(blamed) > 1 else ""
    return _subject(first) + also + (f"; {_waiting(first, others)}" if others else "")


def _skipped_sentence(report: Report, began: str, other: Report, usual: str) -> str:
    return (
        f"rank {report['rank']} on {report['host']} left the way of rank {other['rank']}: it began {began}, and "
        f"rank {other['rank']} began {usual} instead; {_positions(report, other)}. {SAME_WAY}"
    )


def _uneven_sentence(uneven: UnevenUpdates) -> str:
    return f"{uneven}; now {_positions(uneven.odd, uneven.other)}. {SAME_WAY}"


def _positions(*reports: Mapping[str, Any]) -> str:
    """Where ranks are that wait for each other."""
    return " and ".join(
        f"rank {report['rank']} waits{' at ' + report['where'] if report['where'] else ''} "
        f"(step {report['step']}, {plural(report['updates'], 'update')} in this launch)"
        for report in reports
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
        return f"{who} ended without an exit report; {seen}"
    return f"{who} sends no heartbeat, so it is stopped or gone, or its host is out of reach; {seen}"


def _waiting(first: Report, others: Sequence[Report]) -> str:
    """What the others wait for, by the example of the first of them."""
    one = others[0]
    who = f"rank {one['rank']} waits" if len(others) == 1 else f"the {len(others)} others wait"
    at = f" at {one['where']}" if one["where"] else ""
    return f"{who} for it{at}{_counts(first, one)}"


def _counts(first: Report, other: Report) -> str:
    """How many collectives the two have begun."""
    if not first["alive"]:
        return ""  # how many it began since its last heartbeat is not known
    theirs, own = other["collectives"], first["collectives"]
    ahead = [name for name in theirs if theirs[name] > own.get(name, 0)]
    if not ahead:
        return ""
    name, begun = ahead[0], own.get(ahead[0], 0)
    return f", in collective {theirs[name]} of group {name}, of which rank {first['rank']} has begun {begun}"


def _nobody_sentence(own: Report, reports: Sequence[Report]) -> str:
    at = f" at {own['where']}" if own["where"] else ""
    return (
        f"{_ranks(reports)} have made no progress for {own['seconds']:.0f} s while {ACTIVITIES[own['activity']]}{at} "
        f"{_when(own)}, and no rank is behind the others in collectives: "
        "the network between them may be broken; `samestep doctor --test all` under the same launcher tests it"
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
