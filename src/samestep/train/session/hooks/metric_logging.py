"""Metrics are added up every step, and written every so many."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from samestep.train.logging.console import Screen, choose_metrics, format_metrics
from samestep.train.logging.metrics import MetricAccumulator, Metrics, MetricValues, PendingMetrics, is_loss
from samestep.train.logging.sinks import Sink
from samestep.train.record.progress import Progress, Tick
from samestep.train.session.hooks.stragglers import RankSpeeds

SHORT_STEP = 0.2
"""Seconds per step on the slowest rank. Where steps are shorter, a row of metrics is read a step later and not waited
for; else it is written at once."""
FAILURE_WAIT = 2.0
"""Seconds to wait for rows that are still pending when a rank has failed."""


@dataclass(frozen=True)
class _Row:
    """Pending metrics of `steps` steps, the last of them `step`."""

    step: int
    epoch: int
    steps: int
    seconds: float
    pending: PendingMetrics


@dataclass
class LogMetrics:
    """Adds every step's metrics up and writes their means every `every` steps; the device is read only then.

    The gathered numbers are read at the next step: waiting for them costs more than everything else about a row.
    """

    accumulator: MetricAccumulator
    sinks: list[Sink]
    screen: Screen
    progress: Progress
    every: int
    unit: str
    length: int
    speeds: RankSpeeds
    stage: str
    """Its name, which progress is shown under."""
    shown: Sequence[str] = ()
    """What the stage wants on the screen; empty: its losses."""

    def __post_init__(self) -> None:
        self._since, self._before = time.monotonic(), self.progress.step
        self._rows: deque[_Row] = deque()
        self._writes_at_once = True
        self._epoch, self._sums = -1, dict[str, tuple[float, int]]()
        """For the screen: the last row's epoch, and in this launch the sum of each loss over how many of its steps."""

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Add the step's metrics; when it is time, start a row."""
        self.write()
        self.accumulator.add(metrics)
        if (tick.step + 1) % self.every and not last:
            return
        self._rows.append(self._start_row(tick))
        if last or self._writes_at_once:
            self.write()

    def end_row(self, tick: Tick) -> None:
        """Write what was added since the last row, because the stage ends with this step."""
        if self._before <= tick.step:
            self._rows.append(self._start_row(tick))
        self.write()

    def write(self) -> None:
        """Write every row that was started; waits for the other ranks."""
        while self._rows:
            self._write(self._rows.popleft())

    def write_ready_rows(self) -> None:
        """After a rank failed: write the rows for which all ranks' numbers are here or come within `FAILURE_WAIT`."""
        while self._rows and self._rows[0].pending.is_ready(FAILURE_WAIT):
            self._write(self._rows.popleft())

    def _write(self, row: _Row) -> None:
        metrics, times = row.pending.finish()
        self._writes_at_once = max(step_seconds for step_seconds, *_ in times) >= SHORT_STEP
        self.speeds.add_row(times, row.step, row.steps)
        if (per_step := metrics.get(f"count/{self.unit}")) is not None:
            metrics[f"{self.unit}/s"] = per_step * row.steps / row.seconds
        metrics = {name: value for name, value in metrics.items() if not name.startswith("count/")}
        self._record(row.step, row.epoch, metrics)
        chosen = choose_metrics(metrics, self.shown) or {name: metrics[name] for name in metrics if is_loss(name)}
        losses = {name: value for name, value in chosen.items() if is_loss(name)}
        speed = {name: metrics[name] for name in [f"{self.unit}/s"] if name in metrics}
        shown = {**chosen} | self._average(row, losses) | speed
        self.screen.advance(self.stage, row.step, self.length, format_metrics(shown))

    def _average(self, row: _Row, losses: MetricValues) -> dict[str, float]:
        """The means of losses over the epoch so far, in rows that began in it."""
        if self._epoch != row.epoch:
            self._epoch, self._sums = row.epoch, {}
        if row.step - row.steps < row.epoch * self.progress.steps_per_epoch:
            return {}
        for name, value in losses.items():
            total, steps = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value * row.steps, steps + row.steps)
        return {f"average {name}": total / steps for name, (total, steps) in self._sums.items()}

    def record(self, step: int, epoch: int, metrics: MetricValues) -> None:
        """Write metrics into every sink, after the rows that were started before."""
        self.write()
        self._record(step, epoch, metrics)

    def record_best(self, step: int, name: str, value: float) -> None:
        """Write that a metric, which was recorded, has its best value so far."""
        for sink in self.sinks:
            sink.write_best(step, name, value)

    def _record(self, step: int, epoch: int, metrics: MetricValues) -> None:
        for sink in self.sinks:
            sink.write(step, epoch, metrics)

    def flush(self) -> None:
        """Bring all metrics so far to the disk, where a kill cannot lose them."""
        self.write()
        for sink in self.sinks:
            sink.flush()

    def _start_row(self, tick: Tick) -> _Row:
        pending = self.accumulator.read_async(self.speeds.of_this_rank())
        now, done = time.monotonic(), tick.step + 1  # only now: a GPU has done its steps once its sums are read
        seconds, steps = max(now - self._since - self.progress.paused_seconds, 1e-9), done - self._before
        self._since, self._before = now, done
        self.progress.paused_seconds = 0.0
        self.progress.seconds += seconds
        return _Row(done, tick.epoch, steps, seconds, pending)
