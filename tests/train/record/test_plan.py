"""Batch arithmetic: global batch, steps, learning rate, warm-up, durations."""

import logging
from dataclasses import asdict, replace
from typing import Any

import pytest

from samestep.core.errors import UserError
from samestep.train.record.config import Config
from samestep.train.record.plan import Plan, global_batch

BASE = Config(batch_size=4)


@pytest.mark.parametrize(
    ("changes", "world", "samples", "batch", "per_epoch", "steps"),
    [
        ({}, 1, 100, 4, 25, 25),
        ({}, 2, 100, 8, 13, 13),  # the last step is smaller, not dropped
        ({}, 3, 100, 12, 9, 9),
        ({"accumulation": 2}, 3, 100, 24, 5, 5),
        ({"accumulation": 2, "epochs": 3}, 2, 100, 16, 7, 21),
        ({"global_batch_size": 10}, 1, 100, 10, 10, 10),
        ({"global_batch_size": 10}, 7, 100, 10, 10, 10),  # the same at any world size
        ({"global_batch_size": 10, "accumulation": 5}, 2, 100, 10, 10, 10),
        ({"global_batch_size": 1000}, 2, 100, 1000, 1, 1),
        ({"max_steps": 7, "epochs": 3}, 2, 100, 8, 13, 7),
        ({"max_steps": 70}, 1, 1, 4, 1, 70),
    ],
)
def test_batch_and_steps(changes: dict, world: int, samples: int, batch: int, per_epoch: int, steps: int) -> None:
    config = replace(BASE, **changes)
    plan = Plan.make(config, world, samples)
    assert global_batch(config, world) == batch
    assert (plan.samples, plan.steps_per_epoch, plan.steps) == (samples, per_epoch, steps)


def test_a_measured_micro_batch_needs_a_global_batch() -> None:
    assert global_batch(Config(batch_size="auto", global_batch_size=10), 2) == 10
    with pytest.raises(UserError, match="no global batch is given; add global_batch_size=N"):
        global_batch(Config(batch_size="auto"), 2)


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_learning_rate_grows_with_the_batch(scaling: Any, factor: float) -> None:
    config = replace(BASE, learning_rate=0.1, lr_scaling=scaling, base_batch_size=2, global_batch_size=8)
    assert Plan.make(config, 1, 100).learning_rate == pytest.approx(0.1 * factor)
    by_ranks = replace(config, global_batch_size=None, batch_size=2)
    assert Plan.make(by_ranks, 4, 100).learning_rate == pytest.approx(0.1 * factor)


@pytest.mark.parametrize(
    ("changes", "warmup"),
    [
        ({}, 0),
        ({"warmup_steps": 10}, 10),
        ({"warmup_ratio": 0.11}, 3),  # of 25 steps, rounded
        ({"warmup_ratio": 0.1, "warmup_steps": 0}, 0),
        ({"warmup_steps": 25}, 25),
    ],
)
def test_warm_up(caplog: pytest.LogCaptureFixture, changes: dict, warmup: int) -> None:
    with caplog.at_level(logging.WARNING):
        assert Plan.make(replace(BASE, **changes), 1, 100).warmup_steps == warmup
    assert not caplog.records


def test_a_warm_up_longer_than_the_run_is_clamped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        plan = Plan.make(replace(BASE, warmup_steps=26), 1, 100)
    assert plan.warmup_steps == 25
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "longer than the run; clamped to its 25 steps" in caplog.text


@pytest.mark.parametrize(
    ("changes", "samples", "message"),
    [
        ({"batch_size": 0}, 10, "batch_size must be a whole number of at least 1 or auto, not 0"),
        ({"accumulation": 0}, 10, "accumulation must be a whole number of at least 1, not 0"),
        ({"global_batch_size": 0}, 10, "global_batch_size must be a whole number of at least 1 or null, not 0"),
        ({"global_batch_size": -3}, 10, "global_batch_size must be a whole number of at least 1 or null, not -3"),
        (
            {"base_batch_size": 0, "lr_scaling": "linear"},
            10,
            "base_batch_size must be a whole number of at least 1, not 0",
        ),
        ({"epochs": 0}, 10, "epochs must be a whole number of at least 1, not 0"),
        ({"max_steps": 0}, 10, "max_steps must be a whole number of at least 1 or null, not 0"),
        ({"learning_rate": -0.1}, 10, "learning_rate must be a number of at least 0, not -0.1"),
        ({"warmup_steps": -1}, 10, "warmup_steps must be a whole number of at least 0 or null, not -1"),
        ({"warmup_ratio": -0.5}, 10, "warmup_ratio must be a number of at least 0 and at most 1, not -0.5"),
        ({"warmup_ratio": 1.5}, 10, "warmup_ratio must be a number of at least 0 and at most 1, not 1.5"),
        ({}, 0, "the training data is empty"),
    ],
)
def test_mistakes_are_named(changes: dict, samples: int, message: str) -> None:
    with pytest.raises(UserError) as caught:
        Plan.make(replace(BASE, **changes), 2, samples)
    assert message in str(caught.value)


def test_the_schedule_follows_the_plan_and_not_the_config() -> None:
    """What the first launch fixed counts, whatever the config would give at today's world size."""
    config = replace(BASE, learning_rate=0.1, schedule="wsd", decay_ratio=0.2, final_lr_ratio=0.1, warmup_steps=5)
    plan = Plan(100, 13, 50, learning_rate=0.4, warmup_steps=5)
    schedule = plan.schedule(config)
    assert schedule(4) == schedule(40) == pytest.approx(0.4)
    assert schedule(45) == pytest.approx(0.4 * 0.55)
    assert schedule(50) == pytest.approx(0.04)


def test_a_plan_survives_the_run_directory() -> None:
    plan = Plan.make(BASE, 3, 100)
    assert Plan(**plan.to_json()) == plan
    assert plan.to_json() == asdict(plan)
