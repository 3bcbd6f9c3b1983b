"""A rank that made other updates than the others is found from how many each step made, and from where."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.world.activity import UpdateHistory
from samestep.world.uneven import UnevenUpdates, find_uneven

Updates = list[tuple[str, int]]
"""Learner and line, in the order of a step."""
STEP: Updates = [("judge", 10), ("judge", 10), ("player", 12)]


def report(rank: int, *steps: Updates, under_way: Updates = [], first: int = 0) -> dict[str, Any]:  # noqa: B006
    """A rank that made these updates, step by step, and some in the step under way."""
    history = UpdateHistory(first)
    for number, updates in enumerate([*steps, under_way], first + 1):
        for learner, line in updates:
            history.began_update(learner, ("/mine.py", line, "step"))
        if number <= first + len(steps):
            history.stepped(number)
    return {"rank": rank, "host": f"node{rank}", "stage": "fit", "history": history.to_json()}


def test_an_update_left_out() -> None:
    found = find_uneven([report(0, STEP, STEP, STEP), report(1, STEP, STEP[:2], STEP, STEP)])
    assert str(found) == (
        "rank 1 on node1 made no update of learner 'player' at step 1 of stage 'fit', where rank 0 made 1 "
        "(rank 0 at /mine.py:12 in step)"
    )


def test_one_update_more() -> None:
    found = find_uneven([report(0, STEP, [*STEP, ("judge", 14)], STEP), report(1, STEP, STEP, STEP)])
    assert str(found) == (
        "rank 0 on node0 made 3 updates of learner 'judge' at step 1 of stage 'fit', where rank 1 made 2 "
        "(rank 0 at /mine.py:14 in step)"
    )


def test_one_more_in_the_step_under_way() -> None:
    found = find_uneven([report(0, STEP, STEP), report(1, STEP, under_way=[*STEP, ("judge", 14)])])
    assert found is not None and (found.odd["rank"], found.step, found.counts) == (1, 1, (3, 2))


def test_the_same_updates_from_other_lines_are_even() -> None:
    """As with a loss that depends on the rank: the learners are updated equally often."""
    other: Updates = [("judge", 20), ("judge", 21), ("player", 22)]
    assert find_uneven([report(0, STEP, STEP), report(1, other, other)]) is None


@settings(max_examples=30)
@given(
    ranks=st.integers(2, 5), odd=st.integers(0, 4), at=st.integers(1, 30), first=st.integers(0, 1000),
    left_out=st.integers(0, 2), behind=st.integers(0, 2), rest=st.integers(1, 9),
)  # fmt: skip
def test_whichever_rank_it_is_wherever_the_others_are(
    ranks: int, odd: int, at: int, first: int, left_out: int, behind: int, rest: int
) -> None:
    odd %= ranks
    usual: list[Updates] = [STEP] * (at + rest + 2)
    others = [report(rank, *usual, under_way=STEP[:1], first=first) for rank in range(ranks) if rank != odd]
    mine = [*usual[:at], STEP[:left_out] + STEP[left_out + 1 :], *usual[at + 1 :]][: len(usual) - min(behind, rest)]
    found = find_uneven(sorted([*others, report(odd, *mine, first=first)], key=lambda each: each["rank"]))
    assert isinstance(found, UnevenUpdates) and (found.odd["rank"], found.step) == (odd, first + at)


@settings(max_examples=30)
@given(done=st.integers(0, 20), under_way=st.integers(0, 3), changes=st.sampled_from([0, 1, 2, 60]))
def test_a_rank_that_is_only_late_is_even(done: int, under_way: int, changes: int) -> None:
    """Also where steps make varying updates, more often than is remembered."""
    steps = [STEP if number % 2 else STEP[:1] for number in range(changes)] + [STEP] * 21
    late = report(1, *steps[: changes + done], under_way=steps[changes + done][:under_way])
    assert find_uneven([report(0, *steps), late]) is None


def test_nothing_is_claimed_of_other_stages_or_without_a_history() -> None:
    uneven = [report(0, STEP, STEP), report(1, STEP, [])]
    assert find_uneven(uneven) is not None
    assert find_uneven([uneven[0], {**uneven[1], "stage": "next"}]) is None
    assert find_uneven([uneven[0], {**uneven[1], "history": []}]) is None
