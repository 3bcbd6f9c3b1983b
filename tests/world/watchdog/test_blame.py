"""Which rank is to blame, given reports of what each rank does."""

from typing import Any

import pytest

from samestep.world.watchdog.blame import find_stall

LIMIT = 10.0


def rank(number: int, default: int = 7, **more: Any) -> dict[str, Any]:
    """A rank that waits in collective 7 for longer than its limit."""
    counts = {"default": default, "control": more.pop("control", 3), "saves": more.pop("saves", 1)}
    return {
        "rank": number,
        "host": f"node{number}",
        "lane": "main",
        "stage": "fit",
        "step": 12,
        "activity": "step",
        "seconds": 11.0,
        "limit": LIMIT,
        "setting": "watch.step",
        "where": "samestep/train/learner.py:134 in _backward",
        "collectives": counts,
        "waits": True,
        "alive": True,
        **more,
    }


def sentence(own: dict[str, Any], *others: dict[str, Any]) -> str:
    stall = find_stall(own, [own, *others])
    assert stall is not None
    return stall.sentence


def test_the_rank_that_is_behind_is_blamed_with_its_line_and_the_others_with_what_they_wait_for() -> None:
    asleep = rank(1, default=6, activity="data", setting="watch.data", seconds=13.0, where="rows.py:48 in __getitem__")
    stall = find_stall(rank(0), [rank(0), asleep, rank(2)])
    assert stall is not None and stall.culprit == asleep
    assert stall.sentence == (
        "rank 1 on node1 has been loading data for 13 s at rows.py:48 in __getitem__ (step 12 of stage 'fit'); "
        "the 2 others wait for it at samestep/train/learner.py:134 in _backward, "
        "in collective 7 of group default, of which rank 1 has begun 6"
    )
    assert stall.to_json()["speaker"] == 0 and stall.to_json()["where"] == "rows.py:48 in __getitem__"
    assert stall.to_json()["sentence"] == f"{stall.sentence}; if it is only slow, raise watch.data"


def test_a_rank_that_keeps_to_its_own_limit_is_waited_for() -> None:
    saving = rank(1, default=6, activity="save", seconds=400.0, limit=900.0)
    assert find_stall(rank(0, seconds=400.0), [rank(0), saving]) is None
    assert find_stall(rank(0, seconds=950.0), [rank(0), {**saving, "seconds": 901.0}]) is not None


def test_a_rank_that_goes_on_is_waited_for_however_long() -> None:
    assert find_stall(rank(0, seconds=5000.0), [rank(0), rank(1, default=6, seconds=0.5)]) is None


def test_of_a_silent_rank_the_limit_of_what_it_last_did_counts() -> None:
    silent = rank(1, default=6, activity="save", seconds=2.0, limit=900.0, alive=False)
    assert find_stall(rank(0, seconds=800.0), [rank(0), silent]) is None
    assert find_stall(rank(0, seconds=901.0), [rank(0), silent]) is not None


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("held", "rank 1 on node1 holds the interpreter at busy.c.py:3 in hold"),
        (
            "stopped",
            "rank 1 on node1 was stopped by a signal (SIGSTOP); it was last seen computing at busy.c.py:3 in hold",
        ),
        ("gone", "rank 1 on node1 ended without an exit report; it was last seen"),
        ("", "rank 1 on node1 sends no heartbeat, so it is stopped or gone, or its host is out of reach"),
    ],
)
def test_a_silent_rank_comes_before_one_that_is_behind(state: str, expected: str) -> None:
    silent = rank(1, alive=False, state=state, where="busy.c.py:3 in hold")
    assert sentence(rank(0), silent, rank(2, default=6)).startswith(expected)
    stall = find_stall(rank(0), [rank(0), silent])
    assert stall is not None and ("raise watch.step" in stall.verdict) == (state == "held"), "the others do not go on"


def test_during_a_save_its_own_group_decides() -> None:
    own = rank(0, lane="save", activity="save", saves=5, default=6)
    assert sentence(own, rank(1, saves=4, activity="save", lane="save")).startswith("rank 1 on node1 has been saving")


def test_nobody_behind() -> None:
    assert "ranks 0 and 1 have made no progress for 11 s" in sentence(rank(0), rank(1))
    assert "no rank is behind" in sentence(rank(0), rank(1)) and "samestep doctor" in sentence(rank(0), rank(1))


def test_where_counts_are_equal_the_rank_that_does_not_wait_is_blamed() -> None:
    asleep = rank(1, activity="start", waits=False, where="mine.py:9 in build")
    assert sentence(rank(0), asleep).startswith("rank 1 on node1 has been starting for 11 s at mine.py:9 in build")


def test_a_lone_rank() -> None:
    assert sentence(rank(0, where="mine.py:3 in spin")) == (
        "rank 0 on node0 has been computing for 11 s at mine.py:3 in spin (step 12 of stage 'fit')"
    )


def test_several_behind_are_all_named() -> None:
    found = sentence(rank(0), rank(1, default=6), rank(2, default=6), rank(3))
    assert found.startswith("rank 1 on node1 has been computing for 11 s") and "(and rank 2 with it)" in found
    assert "the 2 others wait for it" in found
