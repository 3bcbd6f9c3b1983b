"""Every row of metrics has the ranks' times beside it, and a rank that the others wait for is named, and why."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samestep import Bench, Config, Fit, Recipe, Stage
from samestep.core.json_files import JsonLines
from samestep.core.rundir import RunDir
from samestep.data.loading import Batch
from samestep.parallel.waiting import WaitTimer
from samestep.train.logging.metrics import Metric, MetricAccumulator
from samestep.train.session.entry import train_with
from samestep.train.session.hooks.stragglers import ROWS, SlowRank, StragglerDetector
from samestep.world.world import World
from toys import Net, Points, error, feed_of, learner_of, made, run_on_ranks

pytestmark = pytest.mark.timeout(900)
EVEN = [0.020, 0.021, 0.019]


def named_after_each(rows: Sequence[Sequence[float]]) -> list[list[int]]:
    """The ranks named after each row."""
    detector = StragglerDetector(len(rows[0]))
    return [[slow.rank for slow in detector.add_row(row, [0.0] * len(row))] for row in rows]


def test_equal_ranks_are_not_named() -> None:
    assert named_after_each([EVEN] * 10) == [[]] * 10
    assert named_after_each([[0.02]] * 10) == [[]] * 10, "nor is one that is alone"
    assert named_after_each([[0.02, 0.02]] * 10) == [[]] * 10
    assert named_after_each([[0.020, 0.020, 0.0259]] * 10) == [[]] * 10, "a quarter more"
    assert named_after_each([[0.001, 0.001, 0.0029]] * 10) == [[]] * 10, "less than two milliseconds more"
    assert named_after_each([[0.0, 0.0, 0.0]] * 10) == [[]] * 10


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_slow_rank_is_named_once(rank: int) -> None:
    row = [0.020 + 0.010 * (rank == other) for other in range(3)]
    assert named_after_each([row] * 9) == [[]] * (ROWS - 1) + [[rank]] + [[]] * (9 - ROWS)


def test_of_two_ranks_the_faster_is_the_measure() -> None:
    assert named_after_each([[0.050, 0.020]] * 3)[-1] == [0]
    assert named_after_each([[0.020, 0.027]] * 3)[-1] == [1]


def test_two_of_five_may_be_slow() -> None:
    assert named_after_each([[0.02, 0.04, 0.02, 0.09, 0.02]] * 4) == [[], [], [1, 3], []]


def test_a_slow_moment_is_not_a_slow_rank() -> None:
    slow = [0.020, 0.020, 0.080]
    assert named_after_each([slow, slow, EVEN] * 5) == [[]] * 15


def test_a_rank_is_named_again_only_after_it_recovered() -> None:
    slow = [0.020, 0.020, 0.080]
    named = named_after_each([slow] * 4 + [EVEN] * (ROWS - 1) + [slow] * 4)
    assert [number for number, ranks in enumerate(named) if ranks] == [2], "that was no recovery yet"
    named = named_after_each([slow] * 4 + [EVEN] * ROWS + [slow] * 4)
    assert [number for number, ranks in enumerate(named) if ranks] == [2, 9]


@pytest.mark.parametrize(("data", "where"), [(0.035, "data"), (0.016, "data"), (0.014, "compute"), (0.0, "compute")])
def test_where_it_is_slow(data: float, where: str) -> None:
    detector = StragglerDetector(3)
    for _ in range(ROWS):
        found = detector.add_row([0.020, 0.050, 0.020], [0.001, 0.001 + data, 0.002])
    assert found == [SlowRank(1, 0.050, 0.020, where)]


class Backwards(nn.Module):
    """Registered in another order than used: the last gradient is that of the part named last."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 2)
        self.inner = nn.Linear(8, 8)
        self.first = nn.Linear(4, 8, bias=False)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.last(self.inner(self.first(x)))


def on_ranks() -> None:
    world = World.join(device="cpu", timeout=60)
    metrics, alone = MetricAccumulator(world), MetricAccumulator(world)
    for one in (metrics, alone):
        one.add({"loss": Metric(torch.tensor(1.0 + world.rank), 2.0), "lr": Metric(0.5, same=True)})
    before = world.control._get_sequence_number_for_group()  # type: ignore[union-attr]
    means, numbers = metrics.read_async([10.0 + world.rank, world.rank / 8]).finish()
    after = world.control._get_sequence_number_for_group()  # type: ignore[union-attr]
    assert after - before == 1, "one message for all"
    assert means == alone.read()
    assert numbers == [[10.0 + rank, rank / 8] for rank in range(world.size)]
    assert metrics.rank_state() == {}, "nothing of it is saved"
    assert MetricAccumulator(world).read_async([float(world.rank)]).finish() == (
        {},
        [[float(rank)] for rank in range(world.size)],
    )

    learner = learner_of(made(Backwards), world, "ddp")
    feed = feed_of(Points(40), world, batch=8, micro=2, steps=3)
    waiting = learner._parallel._wait_timer  # type: ignore[attr-defined]
    assert (learner.waited, len(waiting._hooks)) == (0.0, 5)
    for step in range(3):
        learner.update(feed[step], error)
        assert list(waiting._hooks) == [learner.replicated_parameters()["first.weight"]], "which comes last"
    assert learner.waited is not None
    assert learner.waited > 0
    seen = learner.waited
    feed[0]
    learner.update_coupled(feed[1], lambda module, batch: {"e": module(batch["x"], batch["tokens"])}, couple)
    assert learner.waited > seen
    assert feed.seconds > 0
    sharded = learner_of(made(Net), world, "fsdp")
    sharded.update(feed[2], error)
    assert sharded.waited is None
    world.leave()


def couple(rows: Any, own: slice) -> dict[str, Tensor]:
    return {"pull": (rows["e"] - rows["e"].mean(0)).square().sum(1)[own]}


def test_times_are_gathered_with_the_metrics_and_waits_are_counted(tmp_path: Path) -> None:
    run_on_ranks(on_ranks, 2, logs=tmp_path)


@pytest.mark.gpu
def test_waits_of_a_gpu_are_read_without_waiting_for_it() -> None:
    waiting = WaitTimer(torch.device("cuda"))
    weight = torch.ones(2000, 2000, device="cuda", requires_grad=True)
    waiting.start_at_last_gradient([weight])
    torch.cuda.set_sync_debug_mode("error")
    try:
        (weight @ weight).sum().backward()
        torch.cuda._sleep(10_000_000)
        waiting.stop()
        with waiting.measure():
            torch.cuda._sleep(10_000_000)
        before = waiting.seconds
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert before < waiting.seconds < 1


def test_a_pass_over_all_rows_is_outside_the_steps() -> None:
    feed = feed_of(Points(40), World.single(), batch=8, micro=2, steps=3)
    assert len(list(feed)) == 3
    assert feed.seconds == 0
    feed[0]
    assert feed.seconds > 0


@dataclass(frozen=True)
class Sleepy(Config):
    """A run in which one rank is slow."""

    sleeps: int = -1
    """The rank."""
    asleep_in: str = "data"
    """Where: in its data, or in its loss."""


NAP = 0.05


class SleepyPoints(Points):
    asleep = False

    def rows(self, indices: Any) -> dict[str, Tensor]:
        if self.asleep:
            time.sleep(NAP)
        return super().rows(indices)


def build(bench: Bench) -> Fit:
    config, rows = bench.config, SleepyPoints(40)
    mine = bench.world.rank == config.sleeps
    rows.asleep = mine and config.asleep_in == "data"

    def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        if mine and config.asleep_in == "loss":
            time.sleep(NAP)
        return error(module, batch)

    return Fit(bench.learner(made(Net)), bench.feed(rows), loss, validation=bench.evaluation_feed(Points(7)))


recipe = Recipe(Sleepy, lambda config: [Stage("fit", build, validate=Fit.validate)])


def train(folder: Path, ranks: int, **settings: Any) -> tuple[RunDir, str]:
    config = {
        "name": "run",
        "out": str(folder),
        "batch_size": 4,
        "global_batch_size": 4 * ranks,
        "checkpoint": {"every_epochs": 0},
        "validate_every": 40,
        **settings,
    }
    return RunDir(folder / "run"), run_on_ranks(train_with, ranks, "test_stragglers", config, logs=folder / "logs")


@pytest.mark.parametrize(("ranks", "slow", "asleep", "where"), [(2, 1, "data", "data"), (3, 0, "loss", "compute")])
def test_the_rank_that_sleeps_is_named(tmp_path: Path, ranks: int, slow: int, asleep: str, where: str) -> None:
    settings = {"sleeps": slow, "asleep_in": asleep, "max_steps": 100, "distributed": {"device": "cpu"}}
    log = {"every": 5, "tensorboard": False}
    rundir, output = train(tmp_path, ranks, log=log, **settings)
    named = [event for event in JsonLines(rundir.events) if event["kind"] == "slow_rank"]
    assert [(event["rank"], event["where"]) for event in named] == [(slow, where)]
    assert named[0]["work"] > named[0]["median"] + NAP / 2
    assert output.count("warning: the others wait for rank") == 1
    assert f"the others wait for rank {slow} on {named[0]['host']}, which works" in output
    rows = list(JsonLines(rundir.rank_speeds))
    assert [row["step"] for row in rows] == list(range(5, 101, 5))
    for row in rows:
        assert {len(row[name]) for name in ("step_seconds", "data_seconds", "wait_seconds")} == {ranks}
        assert row["stage"] == "fit"
    for row in rows[:-1]:  # the last step has nothing more to load
        assert row["step_seconds"][slow] > NAP
        assert (row["data_seconds"][slow] > NAP) == (where == "data")
    metrics = list(JsonLines(rundir.metrics))
    assert not any("time" in name or "seconds" in name for row in metrics for name in row), "of another run it is equal"


def test_a_sharded_run_records_no_waits(tmp_path: Path) -> None:
    distributed = {"device": "cpu", "strategy": "fsdp"}
    rundir, _ = train(tmp_path, 2, max_steps=4, distributed=distributed, log={"every": 3, "tensorboard": False})
    rows = list(JsonLines(rundir.rank_speeds))
    assert [row["step"] for row in rows] == [3, 4]
    assert [row["wait_seconds"] for row in rows] == [None, None]
    assert all(seconds > 0 for row in rows for seconds in row["step_seconds"])
