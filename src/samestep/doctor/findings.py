"""Findings (the rows of the table), what ranks measured, and how ranks and numbers are written."""

import statistics
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from samestep.core.json_files import Json

_MOST_HOSTS = 3


class FindingStatus(Enum):
    """The result of one row of the table."""

    OK = "ok"
    WARNING = "warning"
    """Training works, but not as well as it could."""
    FAILED = "FAILED"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One row of the table. The sentence says what was seen and, if it is wrong, the likely cause and the fix."""

    name: str
    result: FindingStatus
    sentence: str


Measured = Mapping[str, Json]
"""What one rank measured in a check, by name."""


@dataclass(frozen=True)
class RankReport:
    """What one rank measured."""

    rank: int
    host: str
    measured: Measured


RankReports = Sequence[RankReport]


def ok(name: str, sentence: str) -> Finding:
    """A finding that everything is right."""
    return Finding(name, FindingStatus.OK, sentence)


def warning(name: str, sentence: str) -> Finding:
    """A finding that is worth knowing."""
    return Finding(name, FindingStatus.WARNING, sentence)


def failed(name: str, sentence: str) -> Finding:
    """A finding that must be fixed."""
    return Finding(name, FindingStatus.FAILED, sentence)


def skipped(name: str, reason: str) -> Finding:
    """A finding that was not checked."""
    return Finding(name, FindingStatus.SKIPPED, reason)


def describe_ranks(reports: RankReports) -> str:
    """Ranks with their hosts: `rank 1 on node2`, `ranks 0-3 on node1 and ranks 4, 6 on node2`."""
    by_host: dict[str, list[int]] = {}
    for report in reports:
        by_host.setdefault(report.host, []).append(report.rank)
    parts = [f"rank{'s' * (len(ranks) > 1)} {number_ranges(ranks)} on {host}" for host, ranks in by_host.items()]
    more = len(parts) - _MOST_HOSTS
    return join_list([*parts[:_MOST_HOSTS], *([f"{more} more hosts"] if more > 0 else [])])


def join_list(items: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def outliers(reports: RankReports, value: Mapping[int, Hashable]) -> tuple[Hashable, RankReports]:
    """The value that most ranks have (rank 0's in a tie), and the ranks that have another."""
    counts = Counter(value[report.rank] for report in reports)
    usual = max(counts, key=lambda known: counts[known])  # the first in a tie, hence the lowest rank's
    return usual, [report for report in reports if value[report.rank] != usual]


def first_rank_of_each_host(reports: RankReports) -> RankReports:
    """One report for each host: the lowest rank's."""
    found: dict[str, RankReport] = {}
    for report in reports:
        found.setdefault(report.host, report)
    return list(found.values())


def median_of_others(values: Sequence[float], index: int) -> float:
    """The median of all values but one; of a single value, itself."""
    return statistics.median([*values[:index], *values[index + 1 :]] or values)


def format_bytes(count: float) -> str:
    """A number of bytes: `24 GiB`, `64 MiB`, `4 B`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{_short(count)} {unit}"
        count /= 1024
    return f"{_short(count)} TiB"


def format_rate(per_second: float) -> str:
    """Bytes per second: `1.2 GB/s`."""
    for unit in ("B/s", "kB/s", "MB/s"):
        if per_second < 1000:
            return f"{_short(per_second)} {unit}"
        per_second /= 1000
    return f"{_short(per_second)} GB/s"


def format_seconds(seconds: float) -> str:
    """A duration: `35 µs`, `1.2 ms`, `3 s`."""
    for unit, length in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= length:
            return f"{_short(seconds / length)} {unit}"
    return f"{_short(seconds * 1e6)} µs"


def number_ranges(numbers: Sequence[int]) -> str:
    """`0-3, 6`: runs of three and more are shortened."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(texts)


def _short(number: float) -> str:
    """Three digits, and all digits before the point."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:.0f}"
