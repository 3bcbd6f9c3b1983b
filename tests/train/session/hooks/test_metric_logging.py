"""When rows of metrics are written, and in which order."""

import time
from pathlib import Path
from typing import Any

import pytest

from samestep.core.rundir import RunDir
from samestep.train.api.bench import Bench
from samestep.train.api.recipe import Stage
from samestep.train.logging.console import Screen
from samestep.train.logging.metrics import Metric, MetricAccumulator
from samestep.train.record.config import Config
from samestep.train.record.progress import Progress, Tick
from samestep.train.session.hooks.metric_logging import SHORT_STEP, LogMetrics
from samestep.train.session.hooks.stragglers import RankSpeeds
from samestep.train.session.hooks.validation import Validate
from samestep.world.world import World
from toys import run_on_ranks


class KeptRows:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.flushed = 0

    def write(self, step: int, epoch: int, metrics: Any) -> None:
        self.rows.append((step, dict(metrics)))

    def flush(self) -> None:
        self.flushed += 1

    def committed(self, step: int) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


class LoggedSteps:
    """Steps with a row of metrics now and then."""

    def __init__(
        self, folder: Path, clock: list[float], step: int = 0, world: World | None = None, every: int = 3
    ) -> None:
        world, rundir, screen = world or World.single(), RunDir(folder / "run"), Screen(visible=False)
        rundir.path.mkdir(exist_ok=True)
        self.clock, self.sink, self.progress = clock, KeptRows(), Progress(100, step)
        speeds = RankSpeeds(Bench(world, Config(), rundir, "fit", screen), self.progress, lambda kind, **details: None)
        self.log = LogMetrics(
            MetricAccumulator(world), [self.sink], screen, self.progress, every, "rows", 20, speeds, "fit"
        )

    def step(self, seconds: float = 0.01, last: bool = False) -> Tick:
        tick = self.progress.tick()
        self.progress.advance()
        self.clock[0] += seconds
        self.log.after_step(tick, {"loss": Metric(float(tick.step)), "count/rows": Metric(8.0)}, last)
        return tick

    @property
    def written(self) -> list[int]:
        return [step for step, _ in self.sink.rows]


def test_a_row_of_short_steps_is_written_a_step_later(tmp_path: Path, clock: list[float]) -> None:
    run = LoggedSteps(tmp_path, clock)
    for _ in range(3):
        run.step()
    assert run.written == [3], "the first one is shown at once"
    for _ in range(3):
        run.step()
    assert run.written == [3]
    run.step(seconds=5.0)
    assert run.written == [3, 6]
    metrics = {"loss": 4.0, "rows/s": pytest.approx(8 / 0.01)}
    assert run.sink.rows[1] == (6, metrics), "the step in which it was written is not in it"
    run.step()
    run.step()
    run.step(last=True)
    assert run.written == [3, 6, 9, 10], "nothing is left at the end"
    assert run.sink.rows[2][1] == {"loss": 7.0, "rows/s": pytest.approx(24 / 5.02)}


def test_the_bar_shows_the_average_of_the_epoch_too(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LoggedSteps(tmp_path, clock)
    run.progress.steps_per_epoch = 7
    shown: list[str] = []
    monkeypatch.setattr(
        run.log.screen, "advance", lambda what, done, total, metrics: shown.append(f"{what}: {metrics}")
    )
    for step in range(13):
        run.step(seconds=SHORT_STEP * 1.01, last=step == 12)
    assert [text.split("  rows/s")[0] for text in shown] == [
        "fit: loss 1  average loss 1",
        "fit: loss 4  average loss 2.5",
        "fit: loss 7",  # its first step belongs to the epoch before
        "fit: loss 10  average loss 10",
        "fit: loss 12  average loss 10.5",  # of four steps
    ]


@pytest.mark.parametrize(
    ("shown", "text"),
    [(("rows/s", "lo*"), "rows/s 80  loss 0  average loss 0"), (("reward",), "loss 0  average loss 0  rows/s 80")],
)
def test_the_bar_shows_what_the_stage_names_else_its_losses(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch, shown: tuple[str, ...], text: str
) -> None:
    run = LoggedSteps(tmp_path, clock, every=1)
    run.log.shown, lines = shown, list[str]()
    monkeypatch.setattr(run.log.screen, "advance", lambda what, done, total, metrics: lines.append(metrics))
    run.step(seconds=0.1)
    assert lines == [text]


def test_rows_of_long_steps_are_written_at_once(tmp_path: Path, clock: list[float]) -> None:
    run = LoggedSteps(tmp_path, clock)
    for _ in range(6):
        run.step(seconds=SHORT_STEP * 1.01)
    assert run.written == [3, 6]


def test_a_save_finds_all_metrics_written(tmp_path: Path, clock: list[float]) -> None:
    run = LoggedSteps(tmp_path, clock)
    for _ in range(6):
        run.step()
    assert run.written == [3]
    run.log.flush()
    assert (run.written, run.sink.flushed) == ([3, 6], 1)
    run.log.flush()
    run.step()
    assert run.written == [3, 6], "each row once"


def test_training_comes_before_validation(tmp_path: Path, clock: list[float]) -> None:
    run = LoggedSteps(tmp_path, clock)
    stage = Stage("fit", lambda bench: None, validate=lambda task, tick: {"val/loss": 7.0})
    config = Config(validate_every=3)
    validate = Validate(stage, None, run.log, Screen(visible=False), run.progress, World.single(), config)
    for _ in range(6):
        tick = run.step()
        validate.after_step(tick, {}, last=False)
    assert [(step, sorted(metrics)) for step, metrics in run.sink.rows] == [
        (3, ["loss", "rows/s"]),
        (3, ["val/loss"]),
        (6, ["loss", "rows/s"]),
        (6, ["val/loss"]),
    ]


def test_the_speed_after_a_resume_is_that_of_this_launch(tmp_path: Path, clock: list[float]) -> None:
    run = LoggedSteps(tmp_path, clock, step=5)
    run.step()
    run.step()
    assert run.sink.rows[0][1]["rows/s"] == pytest.approx(8 / 0.01), "one step in one hundredth of a second"


def rows_on_ranks(folder: Path) -> None:
    world = World.join(device="cpu", timeout=60)
    now = [100.0]
    time.monotonic = lambda: now[0]
    run = LoggedSteps(folder, now, world=world, every=1)
    for _ in range(4):
        run.step()
    assert run.written == [1, 2, 3], "each is read at the next step"
    run.step(seconds=SHORT_STEP * (0.9 if world.is_main else 1.1))  # the time of one rank alone must not matter
    assert run.written == [1, 2, 3, 4]
    run.log.flush()
    assert run.written == [1, 2, 3, 4, 5]
    run.step()
    assert run.written == [1, 2, 3, 4, 5, 6], "as long as the last row was for the slowest"
    run.step()
    run.step()
    assert run.written == [1, 2, 3, 4, 5, 6, 7]
    run.log.write_ready_rows()
    assert run.written == [1, 2, 3, 4, 5, 6, 7, 8], "started rows are complete without a next message of any rank"
    assert [metrics["loss"] for _, metrics in run.sink.rows] == [float(world.size * n) for n in range(8)]
    world.leave()


@pytest.mark.parametrize("size", [2])
def test_rows_are_sent_when_they_are_started_and_read_at_the_next_step(tmp_path: Path, size: int) -> None:
    run_on_ranks(rows_on_ranks, size, tmp_path, logs=tmp_path / "logs")
