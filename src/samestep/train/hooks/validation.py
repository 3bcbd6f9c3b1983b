"""Validation, the line that sums up an epoch, and a check of counted weights after the first updates."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samestep.data.feed import Feed
from samestep.train.hooks.metric_logging import LogMetrics
from samestep.train.learner.learner import Learner
from samestep.train.logging.console import Screen, format_metrics
from samestep.train.logging.metrics import MetricAccumulator, Metrics, is_loss
from samestep.train.loop import Progress
from samestep.train.recipe import Stage
from samestep.train.task import Tick


@dataclass
class Validate:
    """Validates at epoch ends or every so many steps, and always at the end; keeps the best agreed figure."""

    stage: Stage
    task: Any
    log: LogMetrics
    screen: Screen
    progress: Progress
    every: int
    figures: Mapping[str, float] = field(default_factory=dict)
    improved: bool = False

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Validate when it is time."""
        self.figures, self.improved = {}, False
        due = tick.last_of_epoch if self.every == 0 else (tick.step + 1) % self.every == 0
        if not (due or last):
            return
        with self.progress.beside_the_steps("validate"):
            self.figures = self.stage.validate(self.task, tick)
        if not self.figures:
            return
        self.log.record(tick.step + 1, tick.epoch, self.figures)
        self.improved = self._keep_best()
        if not tick.last_of_epoch:  # then the epoch's own line says it
            self.screen.say(f"step {tick.step + 1}  {self.summary()}")

    def summary(self) -> str:
        """The newest figures as text."""
        return format_metrics(self.figures) + ("  (best so far)" if self.improved else "")

    def _keep_best(self) -> bool:
        """The figures are equal on all ranks, so all ranks decide alike."""
        if self.stage.best is None:
            return False
        name, mode = self.stage.best
        assert name in self.figures, (
            f"stage {self.stage.name!r}: best is {name!r}, validation gave {sorted(self.figures)}"
        )
        value, best = self.figures[name], self.progress.best
        improved = best is None or (value < best if mode == "min" else value > best)
        if improved:
            self.progress.best = value
        return improved


@dataclass
class EpochSummary:
    """One line an epoch: its training figures beside its validation."""

    book: MetricAccumulator
    screen: Screen
    validate: Validate

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Count the step in; sum up at the epoch's end."""
        self.book.add({name: figure for name, figure in metrics.items() if is_loss(name)})
        if not tick.last_of_epoch:
            return
        train = {f"train {name}": value for name, value in self.book.read().items()}
        self.screen.say(f"epoch {tick.epoch + 1}  {format_metrics(train)}  {self.validate.summary()}".rstrip())


@dataclass
class CheckCounts:
    """Refuses weights that belong to no term, after the first step by which every learner made an update."""

    feeds: list[Feed]
    learners: list[Learner]
    _is_done: bool = False

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Look once."""
        if not self._is_done and all(learner.is_under_way for learner in self.learners):
            self._is_done = True
            for feed in self.feeds:
                feed.check_counted()
