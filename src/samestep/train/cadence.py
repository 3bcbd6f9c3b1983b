"""What happens now and then beside the steps: figures, validation, epoch summaries, saves."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep.checkpoint.background import Saver
from samestep.data.feed import Feed
from samestep.train.config import Checkpoints
from samestep.train.console import Screen, show_figures
from samestep.train.learner import Learner
from samestep.train.loop import Progress
from samestep.train.metrics import Book, Metrics, Reading, is_loss
from samestep.train.recipe import Stage, Tick
from samestep.train.sinks import Sink
from samestep.train.stop import Stop
from samestep.train.stragglers import Speeds

SHORT = 0.2
"""Seconds a step, on the slowest rank, under which a row of figures is not waited for but read a step later; those of
longer ones are shown at once."""
PARTING = 2.0
"""Seconds to wait for rows that are still under way when a rank has failed."""


@dataclass(frozen=True)
class _Row:
    """Figures of `steps` steps, the last of them `step`, on their way between the ranks."""

    step: int
    epoch: int
    steps: int
    seconds: float
    reading: Reading


@dataclass
class LogFigures:
    """Adds every step's figures up and writes their means every `every` steps; the device is read only then.

    What the ranks tell each other for it is read at the next step: to wait for it costs more than all else about a row.
    """

    book: Book
    sinks: list[Sink]
    screen: Screen
    progress: Progress
    every: int
    unit: str
    length: int
    speeds: Speeds

    def __post_init__(self) -> None:
        self._since, self._before = time.monotonic(), self.progress.step
        self._rows: deque[_Row] = deque()
        self._at_once = True

    def fire(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Count the step in; when it is time, begin a row."""
        self.write()
        self.book.add(metrics)
        if (tick.step + 1) % self.every and not last:
            return
        self._rows.append(self._begin(tick))
        if last or self._at_once:
            self.write()

    def write(self) -> None:
        """Write every row that was begun."""
        while self._rows:
            self._write(self._rows.popleft())

    def rescue(self) -> None:
        """Write the rows that were begun when a rank failed, as far as all ranks' numbers are here or come soon."""
        while self._rows and self._rows[0].reading.has_arrived(PARTING):
            self._write(self._rows.popleft())

    def _write(self, row: _Row) -> None:
        figures, times = row.reading.finish()
        self._at_once = max(a_step for a_step, *_ in times) >= SHORT
        self.speeds.take(times, row.step, row.steps)
        if (per_step := figures.get(f"count/{self.unit}")) is not None:
            figures[f"{self.unit}/s"] = per_step * row.steps / row.seconds
        figures = {name: value for name, value in figures.items() if not name.startswith("count/")}
        self._record(row.step, row.epoch, figures)
        shown = {name: figures[name] for name in figures if is_loss(name) or name == f"{self.unit}/s"}
        self.screen.advance("train", row.step, self.length, show_figures(shown))

    def record(self, step: int, epoch: int, figures: Mapping[str, float]) -> None:
        """Write figures into every sink, after the rows that were begun before."""
        self.write()
        self._record(step, epoch, figures)

    def _record(self, step: int, epoch: int, figures: Mapping[str, float]) -> None:
        for sink in self.sinks:
            sink.write(step, epoch, figures)

    def flush(self) -> None:
        """Bring all figures so far where a kill cannot take them."""
        self.write()
        for sink in self.sinks:
            sink.flush()

    def _begin(self, tick: Tick) -> _Row:
        reading = self.book.reading(self.speeds.own_times())
        now, done = time.monotonic(), tick.step + 1  # only now: the steps of a GPU are done when it was read
        seconds, steps = max(now - self._since - self.progress.aside, 1e-9), done - self._before
        self._since, self._before = now, done
        self.progress.aside = 0.0
        self.progress.seconds += seconds
        return _Row(done, tick.epoch, steps, seconds, reading)


@dataclass
class CheckCounts:
    """Refuses weights that belong to no term, after the first step by which every learner made an update."""

    feeds: list[Feed]
    learners: list[Learner]
    _is_done: bool = False

    def fire(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Look once."""
        if not self._is_done and all(learner.is_under_way for learner in self.learners):
            self._is_done = True
            for feed in self.feeds:
                feed.check_counted()


@dataclass
class Validate:
    """Validates at epoch ends or every so many steps, and always at the end; keeps the best agreed figure."""

    stage: Stage
    task: Any
    log: LogFigures
    screen: Screen
    progress: Progress
    every: int
    figures: Mapping[str, float] = field(default_factory=dict)
    improved: bool = False

    def fire(self, tick: Tick, metrics: Metrics, last: bool) -> None:
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
        return show_figures(self.figures) + ("  (best so far)" if self.improved else "")

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

    book: Book
    screen: Screen
    validate: Validate

    def fire(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Count the step in; sum up at the epoch's end."""
        self.book.add({name: figure for name, figure in metrics.items() if is_loss(name)})
        if not tick.last_of_epoch:
            return
        train = {f"train {name}": value for name, value in self.book.read().items()}
        self.screen.say(f"epoch {tick.epoch + 1}  {show_figures(train)}  {self.validate.summary()}".rstrip())


@dataclass
class Save:
    """Has the state saved by steps, epochs, the agreed clock, and at the end, while training goes on."""

    saver: Saver
    state: Mapping[str, Any]
    about: Callable[[], dict[str, Any]]
    settings: Checkpoints
    stage: Stage
    stop: Stop
    progress: Progress
    validate: Validate
    learners: list[Learner]
    log: LogFigures
    write_weights: Callable[[Path, list[str]], None]
    """Makes plain weight files of these names out of a checkpoint; called on rank 0 alone."""
    _names: list[str] = field(default_factory=list)

    def fire(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Save when it is time."""
        self.saver.poll()
        done, epochs = tick.step + 1, tick.epoch + 1
        by_steps = self.settings.every_steps > 0 and done % self.settings.every_steps == 0
        by_epoch = self.settings.every_epochs > 0 and tick.last_of_epoch and epochs % self.settings.every_epochs == 0
        self._names = []
        if self.settings.weights:
            self._names += [f"step_{done}"] if by_steps or last else []
            self._names += [f"epoch_{epochs}"] if by_epoch else []
        if by_steps or by_epoch or last or self.stop.save_due:
            with self.progress.beside_the_steps("save"):
                self._prepare()
                self.saver.save(self.progress.step, self.state, self._about(), self._then())

    def finish(self) -> None:
        """The last save of a stage: on the disk when this returns."""
        self._prepare()
        self.saver.finish(self.progress.step, self.state, self._about(), self._then())

    def _prepare(self) -> None:
        """What the checkpoint takes for granted: good steps, and figures that a kill right after it cannot take."""
        for learner in self.learners:
            learner.settle()
        self.log.flush()

    def _about(self) -> dict[str, Any]:
        about = self.about()
        if self.stage.best is not None and self.stage.best[0] in self.validate.figures:
            name, mode = self.stage.best
            about |= {"figure": self.validate.figures[name], "figure_name": name, "figure_mode": mode}
        return about

    def _then(self) -> Callable[[Path], None]:
        """Weight files come out of the checkpoint once it is one, so there are none of a state that was not saved."""
        names = list(self._names)
        return lambda checkpoint: self.write_weights(checkpoint, names)
