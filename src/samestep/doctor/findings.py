"""What doctor says of one thing, and whom it says it of."""

import statistics
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from samestep.core.records import Json

_MOST_HOSTS = 3


class FindingStatus(Enum):
    """How one thing stands."""

    OK = "ok"
    WARNING = "warning"
    """Training works, but not as well as it could."""
    FAILED = "FAILED"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One row of the table. The sentence tells what was seen and, unless all is well, the likely cause and the fix."""

    name: str
    result: FindingStatus
    sentence: str


@dataclass(frozen=True)
class RankReport:
    """What one rank measured."""

    rank: int
    host: str
    fact: Mapping[str, Json]


RankReports = Sequence[RankReport]


def ok(name: str, sentence: str) -> Finding:
    """All is well."""
    return Finding(name, FindingStatus.OK, sentence)


def warning(name: str, sentence: str) -> Finding:
    """Worth a word."""
    return Finding(name, FindingStatus.WARNING, sentence)


def failed(name: str, sentence: str) -> Finding:
    """Must be mended."""
    return Finding(name, FindingStatus.FAILED, sentence)


def skipped(name: str, reason: str) -> Finding:
    """Was not looked at."""
    return Finding(name, FindingStatus.SKIPPED, reason)


def named(reports: RankReports) -> str:
    """Ranks with their hosts: `rank 1 on node2`, `ranks 0-3 on node1 and ranks 4, 6 on node2`."""
    by_host: dict[str, list[int]] = {}
    for report in reports:
        by_host.setdefault(report.host, []).append(report.rank)
    parts = [f"rank{'s' * (len(ranks) > 1)} {ranges(ranks)} on {host}" for host, ranks in by_host.items()]
    more = len(parts) - _MOST_HOSTS
    return listed([*parts[:_MOST_HOSTS], *([f"{more} more hosts"] if more > 0 else [])])


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def odd_ones(reports: RankReports, value: Mapping[int, Hashable]) -> tuple[Hashable, RankReports]:
    """The value, by rank, that most ranks have (rank 0's where two are as frequent), and those that have another."""
    counts = Counter(value[report.rank] for report in reports)
    usual = max(counts, key=lambda known: counts[known])  # the first of equals, hence the lowest rank's
    return usual, [report for report in reports if value[report.rank] != usual]


def first_of_hosts(reports: RankReports) -> RankReports:
    """One report a host: the lowest rank's."""
    found: dict[str, RankReport] = {}
    for report in reports:
        found.setdefault(report.host, report)
    return list(found.values())


def others_median(values: Sequence[float], index: int) -> float:
    """The median of all values but one; of a lone value, itself."""
    return statistics.median([*values[:index], *values[index + 1 :]] or values)


def size(count: float) -> str:
    """Bytes in words: `24 GiB`, `64 MiB`, `4 B`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{_short(count)} {unit}"
        count /= 1024
    return f"{_short(count)} TiB"


def rate(per_second: float) -> str:
    """Bytes a second in words: `1.2 GB/s`."""
    for unit in ("B/s", "kB/s", "MB/s"):
        if per_second < 1000:
            return f"{_short(per_second)} {unit}"
        per_second /= 1000
    return f"{_short(per_second)} GB/s"


def span(seconds: float) -> str:
    """A time in words: `35 µs`, `1.2 ms`, `3 s`."""
    for unit, length in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= length:
            return f"{_short(seconds / length)} {unit}"
    return f"{_short(seconds * 1e6)} µs"


def ranges(numbers: Sequence[int]) -> str:
    """`0-3, 6`: runs of three and more are shortened."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(words)


def _short(number: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:.0f}"
