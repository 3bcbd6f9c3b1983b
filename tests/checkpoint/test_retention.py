"""Which checkpoints are kept, decided without a disk."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.checkpoint.retention import Retention
from samestep.core.errors import UserError


@dataclass(frozen=True)
class Saved:
    step: int
    metric: float | None = None
    damage: str | None = None
    metric_name: str = ""


def left(keep: Retention, *saved: Saved) -> list[int]:
    gone = {c.step for c in keep.to_delete(saved)}
    return sorted(c.step for c in saved if c.step not in gone)


def test_the_last_ones_stay() -> None:
    assert left(Retention(keep_last=2, keep_best=0), *(Saved(step) for step in (30, 10, 20, 40))) == [30, 40]


@pytest.mark.parametrize(("mode", "kept"), [("min", [20, 50]), ("max", [40, 50])])
def test_the_best_one_stays(mode: str, kept: list[int]) -> None:
    saved = [Saved(10), Saved(20, 0.1), Saved(30, float("inf")), Saved(40, float("inf")), Saved(50, 0.5)]
    assert left(Retention(keep_last=1, keep_best=1, mode=mode), *saved) == kept, "of equals the later stays"


def test_checkpoints_with_another_metric_are_not_compared() -> None:
    saved = [Saved(10, 0.1, metric_name="val/bits"), Saved(20, 0.5, metric_name="val/nll"), Saved(30, 0.7), Saved(40)]
    assert left(Retention(keep_last=1, keep_best=1, metric="val/nll"), *saved) == [20, 40]
    assert left(Retention(keep_last=1, keep_best=1), *saved) == [10, 40]


def test_every_so_many_steps_one_stays() -> None:
    saved = [Saved(step) for step in range(10, 80, 10)]
    assert left(Retention(keep_last=1, keep_best=0, keep_every=30), *saved) == [30, 60, 70]


def test_damaged_ones_do_not_count_and_go_when_a_newer_good_one_is_there() -> None:
    saved = [Saved(10), Saved(20, 0.1, "truncated"), Saved(30), Saved(40, None, "truncated")]
    assert left(Retention(keep_last=2, keep_best=1), *saved) == [10, 30, 40]
    assert left(Retention(keep_last=1, keep_best=0), Saved(10, None, "gone"), Saved(20, None, "gone")) == [10, 20]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.none() | st.floats(allow_nan=False), st.none() | st.just("bad")), max_size=12
    ),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 5),
    st.sampled_from(["min", "max"]),
)
def test_the_newest_good_one_always_stays(rows: list, last: int, best: int, every: int, mode: str) -> None:
    saved = [Saved(*row) for row in {row[0]: row for row in rows}.values()]
    keep = Retention(last, best, every, mode)
    good = sorted(c.step for c in saved if c.damage is None)
    assert set(good[-last:]) <= set(left(keep, *saved))
    rest = [c for c in saved if c.step in left(keep, *saved)]
    assert keep.to_delete(rest) == [], "what was kept once is kept again"


@pytest.mark.parametrize("wrong", [{"keep_last": 0}, {"keep_best": -1}, {"keep_every": -1}, {"mode": "least"}])
def test_wrong_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError, match=r"keep_|mode"):
        Retention(**wrong)
