"""When all ranks stop, and when a save is due by the clock."""

import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest

from samestep.train.record.stop import MAX_CALLS, Stop
from samestep.world.agreement import MAX_DELAY, MAX_STEPS
from samestep.world.world import World
from toys import run_on_ranks


def saves(world: World, a_step: float, every: float) -> list[int]:
    """The steps before which a save is due, of 60; rank 0's clock alone reaches the time for one."""
    now = [0.0]
    stop = Stop(world, save_seconds=every if world.is_main else 1e9, clock=lambda: now[0])
    due = []
    for step in range(60):
        now[0] += a_step
        assert not stop.agreed()
        due += [step] if stop.save_due else []
    return due


def save_by_the_clock() -> None:
    world = World.join(device="cpu", timeout=60)
    for a_step, every in [(MAX_DELAY, 10), (MAX_DELAY / 4, 15), (MAX_DELAY / 100, 25)]:
        due = saves(world, a_step, every * a_step)
        assert world.gather(due) == [due] * world.size, "all ranks at the same steps"
        apart = [later - before for before, later in pairwise(due)]
        assert due and all(every <= steps <= every + MAX_STEPS + 1 for steps in apart), (every, due)
    world.leave()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_clock_asks_for_each_save_once(tmp_path: Path, size: int) -> None:
    run_on_ranks(save_by_the_clock, size, logs=tmp_path)


def stop_by_the_clock() -> None:
    world = World.join(device="cpu", timeout=60)
    now = [0.0]
    stop = Stop(world, max_seconds=5.0 if world.rank == world.size - 1 else None, clock=lambda: now[0])
    steps = 0
    while not stop.agreed():
        now[0] += 1.0
        steps += 1
    assert stop.reason == "max_time"
    assert world.gather(steps) == [steps] * world.size and 5 <= steps <= 6, steps
    world.leave()


@pytest.mark.parametrize("size", [1, 2])
def test_one_ranks_time_is_up_for_all(tmp_path: Path, size: int) -> None:
    run_on_ranks(stop_by_the_clock, size, logs=tmp_path)


@pytest.mark.parametrize(("signal_at", "reason"), [(4.0, "SIGTERM"), (8.0, "max_time")])
def test_what_came_first_is_the_reason(signal_at: float, reason: str) -> None:
    """A scheduler whose limit comes while the run saves sends SIGTERM, which is no request of a user then."""
    now = [0.0]
    stop = Stop(World.single(), max_seconds=5.0, clock=lambda: now[0])
    assert not stop.agreed()
    with stop.handling_signals():
        now[0] = signal_at
        os.kill(os.getpid(), signal.SIGTERM)
        now[0] = 10.0  # the step, or the save after it, lasted until now
        while not stop.agreed():
            pass
    assert stop.reason == reason


def leave_a_step() -> None:
    """One rank's time is up inside a step; ranks ask each other rarely if checks are quick."""
    world = World.join(device="cpu", timeout=60)
    now = [0.0]
    stop = Stop(world, max_seconds=5.0 if world.rank == world.size - 1 else None, clock=lambda: now[0])
    stop.check_inside()
    assert not stop.is_checked_inside, "outside of the loop nothing happens"
    for seconds, late in ((0.01, MAX_CALLS * 0.01), (2.0, 2.0)):
        now[0] = 0.0
        checks = 0
        with stop.leaving_steps():
            assert not stop.agreed()
            while True:
                now[0] += seconds
                checks += 1
                stop.check_inside()
        assert stop.left_step and stop.is_checked_inside and stop.reason == "max_time"
        assert 5 <= now[0] <= 5 + late + 1e-6, now
        assert world.gather(checks) == [checks] * world.size, "all ranks at the same check"
    world.leave()


@pytest.mark.parametrize("size", [1, 2])
def test_all_ranks_leave_a_step_together(tmp_path: Path, size: int) -> None:
    run_on_ranks(leave_a_step, size, logs=tmp_path)
