"""How ranks and numbers are written."""

import pytest

from doctor.doctor_tables import ranks
from samestep.doctor.findings import (
    RankReport,
    describe_ranks,
    first_rank_of_each_host,
    format_bytes,
    format_rate,
    format_seconds,
    median_of_others,
    outliers,
)


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ([(1, "node2")], "rank 1 on node2"),
        ([(0, "a"), (1, "a"), (2, "a"), (5, "a")], "ranks 0-2, 5 on a"),
        ([(0, "a"), (1, "a"), (4, "b")], "ranks 0, 1 on a and rank 4 on b"),
        ([(rank, f"h{rank}") for rank in range(9)], "rank 0 on h0, rank 1 on h1, rank 2 on h2 and 6 more hosts"),
    ],
)
def test_ranks_are_named_with_their_hosts(places: list[tuple[int, str]], text: str) -> None:
    assert describe_ranks([RankReport(rank, host, {}) for rank, host in places]) == text


def test_outliers_are_the_minority_and_never_rank_0_at_a_tie() -> None:
    reports = ranks({})
    assert [r.rank for r in outliers(reports, {0: "x", 1: "y", 2: "y", 3: "y"})[1]] == [0]
    usual, odd = outliers(reports, {0: "x", 1: "y", 2: "y", 3: "x"})
    assert (usual, [r.rank for r in odd]) == ("x", [1, 2])


def test_one_rank_of_each_host() -> None:
    assert [r.rank for r in first_rank_of_each_host(ranks({}))] == [0, 2]


def test_the_median_of_the_others_leaves_a_value_out() -> None:
    assert median_of_others([1.0, 9.0], 1) == 1.0
    assert median_of_others([1.0, 2.0, 3.0, 100.0], 3) == 2.0
    assert median_of_others([5.0], 0) == 5.0


def test_units() -> None:
    assert [format_bytes(4), format_bytes(1000 << 20), format_bytes(3 << 40)] == ["4 B", "1000 MiB", "3 TiB"]
    assert [format_rate(999), format_rate(1.5e6), format_rate(2e12)] == ["999 B/s", "1.5 MB/s", "2000 GB/s"]
    assert [format_seconds(2), format_seconds(0.0015), format_seconds(35e-6)] == ["2 s", "1.5 ms", "35 µs"]
