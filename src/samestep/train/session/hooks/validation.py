"""Validation, and the line that sums up an epoch."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from samestep.core.errors import UserError
from samestep.train.api.recipe import Stage
from samestep.train.api.recipe_checks import check_validation
from samestep.train.logging.console import Screen, choose_metrics, format_metrics
from samestep.train.logging.metrics import MetricAccumulator, Metrics, MetricValues, is_loss
from samestep.train.record.config import Config
from samestep.train.record.improvement import follows_validation
from samestep.train.record.progress import Progress, Tick
from samestep.train.session.hooks.metric_logging import LogMetrics
from samestep.world.world import World

SHOWN = 8
"""Validation metrics on the screen, where the stage does not say which."""


def check_validated(stage: Stage, found: MetricValues, config: Config) -> None:
    """Refuse validation metrics that lack what the stage or its settings follow."""
    check_validation(stage.name, found, stage.best)
    followed = follows_validation(config) if stage.best is not None and not found else []
    if followed:
        raise UserError(
            f"stage {stage.name!r} gave no validation metrics, which {followed[0]} follows; give it validation data, "
            "or leave this setting out"
        )


@dataclass
class Validate:
    """Validates at epoch ends or every so many steps, always at the end, and at the start if asked; keeps the best
    value so far.

    Ends the stage when validations have not improved for long enough.
    """

    stage: Stage
    task: Any
    log: LogMetrics
    screen: Screen
    progress: Progress
    world: World
    config: Config
    """The stage's own."""
    event: Callable[..., None] = lambda kind, **details: None
    """Records an event of the run: its kind and its details."""
    save_state: Callable[[], None] = lambda: None
    """Saves the state before a failure is raised."""
    improved: bool = False

    @property
    def values(self) -> MetricValues:
        """The validation metrics of this step; empty where it did not validate."""
        return self.progress.validation

    def at_start(self) -> None:
        """Validate the state that the stage begins with; improvement is measured from it."""
        now = self.progress.tick()
        before = Tick(now.step - 1, now.epoch, last_of_epoch=False)
        self._validate(before, counts=False)
        if self.improved:  # not where it is NaN, for which no step can be blamed
            self._count(before)

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Validate when it is time."""
        self.improved = False
        self.progress.is_unvalidated = False
        every = self.config.validate_every
        due = tick.last_of_epoch if every == 0 else (tick.step + 1) % every == 0
        if due or last:
            self._validate(tick, counts=due)

    def _validate(self, tick: Tick, *, counts: bool) -> None:
        """After the step `tick`; `counts`: whether early stopping and plateau follow it."""
        with self.progress.outside_steps("validate"):
            self.progress.validation = self._validated(tick)
        if not self.values:
            return
        self.log.record(tick.step + 1, tick.epoch, self.values)
        self.improved = self._keep_best(tick)
        if not tick.last_of_epoch:  # else the line of the epoch has it
            self.screen.print(f"step {tick.step + 1}  {self.summary()}")
        if counts and self.stage.best is not None:
            self._count(tick)

    def _validated(self, tick: Tick) -> MetricValues:
        """The metrics; if validation fails on any rank, the state of the step is saved before that is raised."""

        def work() -> MetricValues:
            found = self.stage.validate(self.task, tick)
            check_validated(self.stage, found, self.config)
            return found

        found, failure = self.world.try_together("validation", work)
        if failure is None:
            assert found is not None
            return found
        if tick.step >= 0:
            self.progress.is_unvalidated = True
            self.save_state()
            self.screen.print(
                f"validation after step {tick.step + 1} failed; the state of this step is saved, and a resume begins "
                "with this validation"
            )
        raise failure

    def _count(self, tick: Tick) -> None:
        assert self.stage.best is not None
        improvement = self.progress.improvement
        if improvement.add(self.values[self.stage.best[0]]):
            self.screen.print(
                f"{improvement.describe()}: the learning rate falls to {improvement.rate_factor:g} of the planned one"
            )
        if improvement.stops:
            self.log.end_row(tick)
            self.screen.print(f"stopped early after step {tick.step + 1}: {improvement.describe()}")

    def summary(self) -> str:
        """The validation metrics of this step that the stage shows, else the first ones, as text; metrics.jsonl has
        them all."""
        return self._shown() + ("  (best so far)" if self.improved else "")

    def _shown(self) -> str:
        if chosen := choose_metrics(self.values, self.stage.shown):
            followed = self.stage.best[:1] if self.stage.best else ()
            return format_metrics({**{name: self.values[name] for name in followed}, **chosen})
        left = len(self.values) - SHOWN
        return format_metrics(dict(islice(self.values.items(), SHOWN))) + (f"  and {left} more" if left > 0 else "")

    def _keep_best(self, tick: Tick) -> bool:
        """The metrics are equal on all ranks, so all ranks decide alike."""
        if self.stage.best is None:
            return False
        name, mode = self.stage.best
        value, best = self.values[name], self.progress.best
        improved = math.isfinite(value) and (best is None or (value < best if mode == "min" else value > best))
        if improved:
            self.progress.best = value
            self.log.record_best(tick.step + 1, name, value)
            self.event("best", stage=self.stage.name, step=tick.step + 1, metric=name, mode=mode, value=value)
        return improved


@dataclass
class AddLosses:
    """Adds the losses of an epoch up, before a validation that may fail: the state that is saved then has them all."""

    accumulator: MetricAccumulator

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        self.accumulator.add({name: metric for name, metric in metrics.items() if is_loss(name)})


@dataclass
class EpochSummary:
    """Prints one line per epoch: its training loss beside its validation metrics."""

    accumulator: MetricAccumulator
    screen: Screen
    validate: Validate

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Print the line at the epoch's end."""
        if not tick.last_of_epoch:
            return
        train = {f"train {name}": value for name, value in self.accumulator.read().items()}
        if text := f"{format_metrics(train)}  {self.validate.summary()}".rstrip():
            self.screen.print(f"epoch {tick.epoch + 1}  {text}")
