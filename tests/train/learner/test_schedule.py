"""The learning rate as a function of the step."""

import itertools
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from samestep.train.record.plan import Schedule

KINDS = ("constant", "linear", "cosine", "wsd")


@st.composite
def schedules(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS) -> Schedule:
    steps = draw(st.integers(1, 500))
    return Schedule(
        peak=draw(st.floats(1e-6, 10)),
        steps=steps,
        warmup=draw(st.integers(0, steps)),
        kind=draw(st.sampled_from(kinds)),
        floor=draw(st.floats(0, 1)),
        decay=draw(st.integers(0, 600)),
    )


@pytest.mark.parametrize(
    ("kind", "rates"),
    [
        ("constant", [1, 2, 2, 2, 2, 2, 2]),
        ("linear", [1, 2, 2, 1.75, 1.5, 1.25, 1]),
        ("cosine", [1, 2, 2, 1.5 + math.sqrt(0.5) / 2, 1.5, 1.5 - math.sqrt(0.5) / 2, 1]),
        ("wsd", [1, 2, 2, 2, 2, 1.5, 1]),
    ],
)
def test_each_schedule_by_hand(kind: str, rates: list[float]) -> None:
    schedule = Schedule(peak=2.0, steps=6, warmup=2, kind=kind, floor=0.5, decay=2)
    assert [schedule(step) for step in range(7)] == pytest.approx(rates)


@settings(max_examples=200, deadline=None)
@given(schedules(), st.integers(0, 1000))
def test_rates_lie_between_zero_and_the_peak(schedule: Schedule, step: int) -> None:
    assert 0 <= schedule(step) <= schedule.peak * (1 + 1e-12)


@settings(max_examples=200, deadline=None)
@given(schedules())
def test_warm_up_climbs_to_the_peak_and_nothing_climbs_after(schedule: Schedule) -> None:
    rates = [schedule(step) for step in range(schedule.steps + 1)]
    warmup, decay = rates[: schedule.warmup], rates[schedule.warmup :]
    assert all(low < high for low, high in itertools.pairwise(warmup))
    assert all(high >= low * (1 - 1e-12) for high, low in itertools.pairwise(decay))
    if warmup:
        assert warmup[0] > 0, "the first update is not wasted"
        assert warmup[-1] == pytest.approx(schedule.peak, rel=1e-12)
    if schedule.warmup < schedule.steps:
        begins_down = schedule.kind == "wsd" and schedule.decay >= schedule.steps - schedule.warmup
        assert begins_down or decay[0] == pytest.approx(schedule.peak, rel=1e-12)


@settings(max_examples=200, deadline=None)
@given(schedules(kinds=("linear", "cosine", "wsd")))
def test_it_ends_at_the_floor_and_stays(schedule: Schedule) -> None:
    assume(schedule.warmup < schedule.steps and not (schedule.kind == "wsd" and schedule.decay == 0))
    floor = schedule.peak * schedule.floor
    assert schedule(schedule.steps) == pytest.approx(floor, rel=1e-9, abs=1e-15)
    assert schedule(10 * schedule.steps) == pytest.approx(floor, rel=1e-9, abs=1e-15)


def test_wsd_stays_at_the_peak_until_its_decay() -> None:
    schedule = Schedule(peak=1.0, steps=100, warmup=10, kind="wsd", decay=20)
    assert {schedule(step) for step in range(9, 81)} == {1.0}
    assert schedule(81) < 1
    assert schedule(99) == pytest.approx(0.05)
