"""Two ranks wait for each other in different collectives: the one that left its way is found from what came before."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from samestep.world.watchdog.blame import find_skipped

Rows = list[list[Any]]


def program(steps: int, ops: list[tuple[str, str]]) -> Rows:
    """The collectives of a training that begins these in every step: (group, what)."""
    counts: dict[str, int] = {}
    rows = []
    for group, what in ops * steps:
        counts[group] = counts.get(group, 0) + 1
        rows.append([group, counts[group], f"{what} in group {group}"])
    return rows


def without(ops: list[tuple[str, str]], steps: int, position: int) -> Rows:
    """The same, with one left out in the last step, and stuck in the next one."""
    done = ops * (steps - 1) + ops[:position] + ops[position + 1 : position + 2]
    return program(1, done)


def report(rank: int, recent: Rows) -> dict[str, Any]:
    return {"rank": rank, "recent": recent}


STEP = [("own", "all_reduce of [1]"), ("default", "all_reduce of [25]"), ("control", "all_gather of [3]")]


def test_a_collective_of_another_group_left_out() -> None:
    healthy, other = program(1, STEP * 5 + STEP[:1]), without(STEP, 6, position=0)
    found = find_skipped([report(0, healthy), report(1, other)])
    assert found is not None
    assert (found[0]["rank"], found[1]) == (1, "all_reduce of [25] in group default")
    assert (found[2]["rank"], found[3]) == (0, "all_reduce of [1] in group own")


def test_one_of_the_same_group_left_out() -> None:
    step = [("default", "all_reduce of [1]"), ("default", "all_reduce of [25]")]
    healthy, other = program(1, step * 5 + step[:1]), program(1, step * 5 + step[1:])
    found = find_skipped([report(0, other), report(1, healthy)])
    assert found is not None and found[0]["rank"] == 0 and found[3] == "all_reduce of [1] in group default"


@given(late=st.integers(0, 14), kept=st.integers(5, 40))
def test_a_rank_that_is_only_late_left_nothing_out(late: int, kept: int) -> None:
    healthy = program(8, STEP)
    assert find_skipped([report(0, healthy[-kept:]), report(1, healthy[: len(healthy) - late][-kept:])]) is None


@given(position=st.integers(0, 2), ranks=st.integers(2, 5), which=st.integers(0, 4), kept=st.integers(9, 60))
def test_whichever_it_is_and_however_far_the_lists_reach_back(position: int, ranks: int, which: int, kept: int) -> None:
    which %= ranks
    healthy = program(1, STEP * 7 + STEP[: position + 1])
    other = program(1, STEP * 7 + STEP[:position] + (STEP + STEP)[position + 1 : position + 2])
    found = find_skipped([report(rank, (other if rank == which else healthy)[-kept:]) for rank in range(ranks)])
    assert found is not None and found[0]["rank"] == which


def test_saves_run_beside_and_count_for_nothing() -> None:
    mine, theirs = program(4, STEP), program(4, STEP)
    mine.insert(3, ["saves", 1, "all_gather in group saves"])
    theirs.insert(9, ["saves", 1, "all_gather in group saves"])
    assert find_skipped([report(0, mine), report(1, [*theirs, ["saves", 2, "all_gather in group saves"]])]) is None


def test_without_a_record_nothing_is_claimed() -> None:
    assert find_skipped([report(0, []), report(1, [])]) is None
