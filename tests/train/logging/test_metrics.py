"""Metrics are global means over ranks and steps; sums not read at a save continue at any world size."""

import json
import weakref
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from samestep.train.logging.metrics import MAX_PENDING, Metric, MetricAccumulator
from samestep.world.rank_discovery import RankInfo
from samestep.world.world import World
from toys import run_on_ranks


def rank_of(rank: int, size: int) -> World:
    """One rank without the others: enough for what needs no communication."""
    return World(RankInfo("test", rank, size), torch.device("cpu"))


def test_means_weigh_steps_by_their_weight() -> None:
    metrics = MetricAccumulator(World.single())
    metrics.add({"loss": Metric(torch.tensor(6.0), 3.0), "lr": Metric(0.5, same=True)})
    metrics.add({"loss": Metric(torch.tensor(10.0), torch.tensor(1.0)), "lr": Metric(0.25, same=True)})
    assert metrics.names() == ["loss", "lr"]
    assert metrics.read() == {"loss": 4.0, "lr": 0.375}
    assert metrics.names() == [], "an accumulator is empty once it was read"
    assert metrics.read() == {}


def test_a_metric_without_weight_is_not_shown() -> None:
    metrics = MetricAccumulator(World.single())
    metrics.add({"loss": Metric(0.0, 0.0), "skipped": Metric(1.0)})
    assert metrics.read() == {"skipped": 1.0}
    metrics.add({"loss": Metric(0.0, 0.0)})
    metrics.add({"loss": Metric(6.0, 2.0)})
    metrics.add({})
    assert metrics.read() == {"loss": 3.0}, "a skipped step weighs nothing in a mean"


def test_sums_are_exact_in_float64() -> None:
    metrics = MetricAccumulator(World.single())
    for _ in range(1000):
        metrics.add({"loss": Metric(torch.tensor(2.0**24) + torch.tensor(2.0), 1.0)})
        metrics.add({"loss": Metric(torch.tensor(1.0), 0.0)})
    assert metrics.read()["loss"] == 2.0**24 + 3, "float32 would have lost the ones"
    metrics.add({"tiny": Metric(0.1), "tensor": Metric(torch.tensor(0.1, dtype=torch.float64))})
    assert metrics.read() == {"tiny": 0.1, "tensor": 0.1}


def test_adding_keeps_no_graph() -> None:
    class Kept:
        """What the graph of a metric holds for a backward pass."""

    kept: list[weakref.ref[Kept]] = []

    def pack(tensor: torch.Tensor) -> Kept:
        made = Kept()
        kept.append(weakref.ref(made))
        return made

    value = torch.tensor(2.0, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda made: torch.zeros(())):
        value = value.square()
    metrics = MetricAccumulator(World.single())
    metrics.add({"loss": Metric(value, value)})
    assert kept
    assert kept[0]() is not None
    del value
    assert kept[0]() is None
    assert metrics.read() == {"loss": 1.0}


def test_metrics_of_many_steps_and_kinds_are_added_exactly() -> None:
    kinds = [torch.float32, torch.float64, torch.bfloat16, torch.int64]
    metrics, total, weight = MetricAccumulator(World.single()), 0.0, 0.0
    for step in range(3 * MAX_PENDING // 2):  # some are added up before they are read
        value = torch.tensor(0.1 * step if step % 4 < 3 else 2**40 + step, dtype=kinds[step % 4])
        metrics.add({"loss": Metric(value, 0.1), "steps": Metric(1.0)})
        total, weight = total + value.item(), weight + 0.1
        if step == MAX_PENDING // 4:
            saved = metrics.rank_state()
            metrics.load_rank_state([saved])
    assert metrics.read() == {"loss": total / weight, "steps": 1.0}


def accumulators_of(size: int) -> list[MetricAccumulator]:
    """Accumulators of all ranks with sums that were not read yet."""
    accumulators = [MetricAccumulator(rank_of(rank, size)) for rank in range(size)]
    for rank, metrics in enumerate(accumulators):
        metrics.add({"loss": Metric(torch.tensor(0.1 + rank), 10.0), "lr": Metric(0.3, same=True)})
        metrics.add({"loss": Metric(torch.tensor(0.7 * rank), 10.0), "lr": Metric(0.1, same=True)})
    return accumulators


@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_unread_sums_survive_at_any_world_size(after: int) -> None:
    saved = json.loads(json.dumps([metrics.rank_state() for metrics in accumulators_of(3)]))
    resumed = [MetricAccumulator(rank_of(rank, after)) for rank in range(after)]
    for metrics in resumed:
        metrics.add({"old": Metric(1.0)})  # is replaced
        metrics.load_rank_state(saved)
    before = [metrics.rank_state() for metrics in accumulators_of(3)]
    now = [metrics.rank_state() for metrics in resumed]
    if after == 3:
        assert now == before, "to the bit at the same world size"
    for name in ("loss", "lr"):
        assert sum(state[name][0] for state in now) == pytest.approx(sum(state[name][0] for state in before), rel=1e-15)
        assert {state[name][1] for state in now} == {before[0][name][1]}
    assert all("old" not in state for state in now)


def test_an_empty_accumulator_survives_too() -> None:
    metrics = MetricAccumulator(World.single())
    metrics.load_rank_state([{}, {}])
    assert metrics.read() == {}


def on_ranks() -> None:
    world = World.join(device="cpu", timeout=60)
    metrics = MetricAccumulator(world)
    for step in range(3):  # every rank has its part of a sum; the weight is that of the global sum
        metrics.add({"loss": Metric(torch.tensor(float(world.rank + step)), 6.0), "lr": Metric(0.1 * step, same=True)})
        metrics.add({"norm": Metric(torch.tensor(2.0), same=True)})
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        means = metrics.read()
    sent = [event.name for event in watched.events() if event.name.startswith("gloo:")]
    assert sent == ["gloo:all_gather"], sent
    total = sum(rank + step for rank in range(world.size) for step in range(3))
    assert means == {"loss": total / 18, "lr": pytest.approx(0.1), "norm": 2.0}
    assert world.gather(means) == [means] * world.size
    world.leave()


@pytest.mark.parametrize("nproc", [2, 3])
def test_ranks_add_up_in_one_message(tmp_path: Path, nproc: int) -> None:
    run_on_ranks(on_ranks, nproc, logs=tmp_path)
