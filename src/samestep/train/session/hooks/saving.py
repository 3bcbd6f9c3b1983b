"""When the state is saved, and the weight files beside a checkpoint."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep.checkpoint.background import Saver
from samestep.train.api.recipe import Stage
from samestep.train.learner.learner import Learner
from samestep.train.logging.metrics import Metrics
from samestep.train.record.config import Checkpoints
from samestep.train.record.progress import Progress, Tick
from samestep.train.record.stop import Stop
from samestep.train.session.hooks.metric_logging import LogMetrics
from samestep.train.session.hooks.validation import Validate
from samestep.train.weights.run_checkpoints import LEARNERS, learner_parts, write_weights


@dataclass
class Save:
    """Saves the state by steps, epochs, the agreed clock, and at the end, while training goes on."""

    saver: Saver
    state: Mapping[str, Any]
    about: Mapping[str, Any]
    """What the manifest says of the run."""
    settings: Checkpoints
    stage: Stage
    stop: Stop
    progress: Progress
    validate: Validate
    learners: list[Learner]
    log: LogMetrics
    weights: Path
    """The folder of plain weight files."""
    saves_best: bool = False
    """Whether to save each time validation improves."""
    _suffixes: list[str] = field(default_factory=list)
    """Of the weight files to write with this save."""

    def at_start(self) -> None:
        """Save what the stage begins with, if its metric is a number: it may stay the best."""
        if self.validate.improved:
            self._save()

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Save when it is time."""
        self.saver.poll()
        done, epochs = tick.step + 1, tick.epoch + 1
        by_steps = self.settings.every_steps > 0 and done % self.settings.every_steps == 0
        by_epoch = self.settings.every_epochs > 0 and tick.last_of_epoch and epochs % self.settings.every_epochs == 0
        self._suffixes = []
        if self.settings.weights:
            self._suffixes += [f"step_{done}"] if by_steps or last else []
            self._suffixes += [f"epoch_{epochs}"] if by_epoch else []
        by_metric = self.saves_best and self.validate.improved
        if by_steps or by_epoch or by_metric or last or self.stop.save_due:
            self._save()

    def finish(self) -> None:
        """The last save of a stage; it is on the disk when this returns."""
        self._prepare()
        self.saver.finish(self.progress.step, self.state, self._about(), self._after_commit())

    def before_failure(self) -> None:
        """Have the state on the disk before a failure after the step is raised."""
        with self.progress.outside_steps("save"):
            self._suffixes = []
            self.finish()

    def finish_without(self) -> None:
        """The end of a stage whose state now cannot be saved: the run resumes from the last checkpoint."""
        self.log.flush()
        self.saver.wait()

    def _save(self) -> None:
        with self.progress.outside_steps("save"):
            self._prepare()
            self.saver.save(self.progress.step, self.state, self._about(), self._after_commit())

    def _prepare(self) -> None:
        """Before a save: raise if too many steps were bad, and write all metrics to the disk for good."""
        for learner in self.learners:
            learner.check_finite()
        self.log.flush()

    def _about(self) -> dict[str, Any]:
        about = {**self.about, LEARNERS: learner_parts(self.state)}
        if self.stage.best is not None and self.stage.best[0] in self.validate.values:
            name, mode = self.stage.best
            about |= {"metric": self.validate.values[name], "metric_name": name, "metric_mode": mode}
        return about

    def _after_commit(self) -> Callable[[Path], None]:
        """Weight files are written from the committed checkpoint, so there are none of a state that was not saved."""
        learners = {key: part.name for key, part in self.state.items() if isinstance(part, Learner)}
        files = {
            key: [self.weights / f"{name}_{suffix}.pt" for suffix in self._suffixes] for key, name in learners.items()
        }
        return lambda checkpoint: write_weights(checkpoint, files)
