"""Which validation is the best so far."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.checkpoint.manifest import Checkpoint, Manifest
from samestep.train.api.recipe import Stage
from samestep.train.record.config import Config
from samestep.train.record.progress import Progress
from samestep.train.session.hooks.validation import Validate
from samestep.world.world import World


class Kept:
    """Takes rows of metrics and lines of text."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def record(self, step: int, epoch: int, metrics: Any) -> None: ...

    def record_best(self, step: int, name: str, value: float) -> None: ...

    def print(self, line: str) -> None:
        self.lines.append(line)


def validations(values: list[float], mode: str) -> tuple[list[bool], float | None, list[str]]:
    """Which of these validations were the best so far, the best at the end, and what was printed."""
    kept: Any = Kept()
    coming: Iterator[float] = iter(values)
    stage = Stage("fit", Any, validate=lambda task, tick: {"val/loss": next(coming)}, best=("val/loss", mode))
    progress = Progress(steps_per_epoch=len(values) + 1)
    validate = Validate(stage, None, kept, kept, progress, World.single(), Config(validate_every=1))
    improved = []
    for _ in values:
        tick = progress.begin_step()
        progress.advance()
        validate.after_step(tick, {}, last=False)
        improved.append(validate.improved)
    return improved, progress.best, kept.lines


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("first", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_finite_number_is_never_the_best(first: float, mode: str) -> None:
    improved, best, lines = validations([first, 3.0, first], mode)
    assert (improved, best) == ([False, True, False], 3.0)
    assert ["(best so far)" in line for line in lines] == improved


@given(st.lists(st.floats(), min_size=1, max_size=8), st.sampled_from(["min", "max"]))
def test_the_best_is_the_best_of_the_finite_ones(values: list[float], mode: str) -> None:
    finite = [value for value in values if math.isfinite(value)]
    expected = (min if mode == "min" else max)(finite, default=None)
    assert validations(values, mode)[1] == expected


@given(st.floats())
def test_a_checkpoint_is_compared_by_a_finite_metric_only(value: float) -> None:
    found = Checkpoint("x", 1, Manifest(1, 1, {}, {"metric": value}))  # type: ignore[arg-type]
    assert found.metric == (value if math.isfinite(value) else None)


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        ((), "val/0 0  val/1 1  val/2 2  val/3 3  val/4 4  val/5 5  val/6 6  val/7 7  and 2 more  (best so far)"),
        (("val/9", "val/1"), "val/8 8  val/9 9  val/1 1  (best so far)"),
    ],
)
def test_a_stage_says_which_metrics_are_shown(shown: tuple[str, ...], line: str) -> None:
    kept: Any = Kept()
    found = {f"val/{number}": float(number) for number in range(10)}
    stage = Stage("fit", Any, validate=lambda task, tick: found, best=("val/8", "min"), shown=shown)
    progress = Progress(steps_per_epoch=9)
    validate = Validate(stage, None, kept, kept, progress, World.single(), Config(validate_every=1))
    tick = progress.begin_step()
    validate.after_step(tick, {}, last=False)
    assert kept.lines == [f"step 1  {line}"]
