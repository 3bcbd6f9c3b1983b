"""Metrics are added up every step, and written every so many."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from samestep.train.hooks.stragglers import Speeds
from samestep.train.logging.console import Screen, format_metrics
from samestep.train.logging.metrics import MetricAccumulator, Metrics, PendingMetrics, is_loss
from samestep.train.logging.sinks import Sink
from samestep.train.loop import Progress
from samestep.train.task import Tick

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
    reading: PendingMetrics


@dataclass
class LogMetrics:
    """Adds every step's figures up and writes their means every `every` steps; the device is read only then.

    What the ranks tell each other for it is read at the next step: to wait for it costs more than all else about a row.
    """

    book: MetricAccumulator
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

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
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
        self.screen.advance("train", row.step, self.length, format_metrics(shown))

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
