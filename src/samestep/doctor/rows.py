"""The rows of an update or of a validation, gathered over the ranks and told apart by sample."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from samestep.doctor.check import distance
from samestep.doctor.trace import Line

RowKey = tuple[int, int, int]
"""Epoch, index, and how often the sample came before in the same batch."""
ALIKE = 1e-6
"""Factors closer than this are the same one."""


@dataclass(frozen=True)
class Row:
    """One row as its rank saw it."""

    values: Mapping[str, float]
    data: tuple[int, int]
    """Checksum and number of values."""
    micro: tuple[int, int]
    """Rank and number of its micro-batch."""
    size: int
    """Rows of its micro-batch."""


def gathered(lines: Sequence[Line]) -> dict[RowKey, Row]:
    """All rows of one update, whose lines come by rank."""
    found: dict[RowKey, Row] = {}
    for rank, line in enumerate(lines):
        places = [(number, size) for number, size in enumerate(line["sizes"]) for _ in range(size)]
        for at, (sample, (number, size)) in enumerate(zip(line["ids"], places)):
            values = {term: column[at] for term, column in line["rows"].items()}
            found[_next(found, sample)] = Row(values, tuple(line["data"][at]), (rank, number), size)
    return found


def count_ids(lines: Iterable[Line]) -> Counter[tuple[int, int]]:
    """How often each sample is there."""
    return Counter(tuple(sample) for line in lines for sample in line["ids"])


def told_apart(wanted: Counter[tuple[int, int]], found: Counter[tuple[int, int]]) -> str:
    """What is wrong with the samples that were found, in words; empty when nothing is."""
    missing, extra = sorted(wanted - found), sorted(found - wanted)
    twice = [sample for sample in extra if sample in wanted]
    words = [
        f"{_named(samples)} {text}"
        for samples, text in (
            (missing, "missing"),
            (twice, "there too often"),
            (
                [sample for sample in extra if sample not in wanted],
                "there in its place" if missing else "there as well",
            ),
        )
        if samples
    ]
    return ", ".join(words)


def other_data(a: Row, b: Row) -> bool:
    """Whether two rows of the same sample hold different values; of rows padded to different lengths nobody knows."""
    return a.data[1] == b.data[1] and a.data[0] != b.data[0]


def scaled(ours: Mapping[RowKey, Row], theirs: Mapping[RowKey, Row], term: str) -> str:
    """By what the values differ: `size` of the micro-batch, one `factor` per micro-batch, or neither (empty)."""
    factors: dict[tuple[tuple[int, int], tuple[int, int]], list[float]] = {}
    for key, row in ours.items():
        other = theirs[key]
        if not row.values[term] or not other.values.get(term):
            return ""
        factors.setdefault((row.micro, other.micro), []).append(other.values[term] / row.values[term])
    by_size = all(
        distance(row.values[term] * row.size, theirs[key].values[term] * theirs[key].size) <= ALIKE
        for key, row in ours.items()
    )
    if by_size:
        return "size"
    alike = all(distance(min(found), max(found)) <= ALIKE for found in factors.values())
    return "factor" if alike and any(len(found) > 1 for found in factors.values()) else ""


def _next(found: Mapping[RowKey, object], sample: Sequence[int]) -> RowKey:
    epoch, index = sample
    occurrence = 0
    while (epoch, index, occurrence) in found:
        occurrence += 1
    return epoch, index, occurrence


def _named(samples: Sequence[tuple[int, int]], most: int = 3) -> str:
    shown = ", ".join(str(sample) for sample in samples[:most])
    more = f" and {len(samples) - most} more" if len(samples) > most else ""
    return f"{shown}{more} {'is' if len(samples) == 1 else 'are'}"
