"""Figures are global means over ranks and steps; a window that is open at a save goes on at any world size."""

import json
import weakref
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from samestep.train.logging.metrics import NOTES, Metric, MetricAccumulator
from samestep.world.rank_discovery import RankInfo
from samestep.world.world import World
from toys import run_on_ranks


def rank_of(rank: int, size: int) -> World:
    """A rank that nobody else is with: enough for what needs no message."""
    return World(RankInfo("test", rank, size), torch.device("cpu"))


def test_means_weigh_steps_by_their_weight() -> None:
    book = MetricAccumulator(World.single())
    book.add({"loss": Metric(torch.tensor(6.0), 3.0), "lr": Metric(0.5, same=True)})
    book.add({"loss": Metric(torch.tensor(10.0), torch.tensor(1.0)), "lr": Metric(0.25, same=True)})
    assert book.names() == ["loss", "lr"]
    assert book.read() == {"loss": 4.0, "lr": 0.375}
    assert book.names() == [], "a book is empty once it was read"
    assert book.read() == {}


def test_a_figure_without_weight_is_not_shown() -> None:
    book = MetricAccumulator(World.single())
    book.add({"loss": Metric(0.0, 0.0), "skipped": Metric(1.0)})
    assert book.read() == {"skipped": 1.0}
    book.add({"loss": Metric(0.0, 0.0)})
    book.add({"loss": Metric(6.0, 2.0)})
    book.add({})
    assert book.read() == {"loss": 3.0}, "a skipped step weighs nothing in a mean"


def test_sums_are_exact_in_float64() -> None:
    book = MetricAccumulator(World.single())
    for _ in range(1000):
        book.add({"loss": Metric(torch.tensor(2.0**24) + torch.tensor(2.0), 1.0)})
        book.add({"loss": Metric(torch.tensor(1.0), 0.0)})
    assert book.read()["loss"] == 2.0**24 + 3, "float32 would have lost the ones"
    book.add({"tiny": Metric(0.1), "tensor": Metric(torch.tensor(0.1, dtype=torch.float64))})
    assert book.read() == {"tiny": 0.1, "tensor": 0.1}


def test_adding_keeps_no_graph() -> None:
    class Kept:
        """What the graph of a figure holds for a backward pass."""

    kept: list[weakref.ref[Kept]] = []

    def pack(tensor: torch.Tensor) -> Kept:
        made = Kept()
        kept.append(weakref.ref(made))
        return made

    value = torch.tensor(2.0, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda made: torch.zeros(())):
        value = value.square()
    book = MetricAccumulator(World.single())
    book.add({"loss": Metric(value, value)})
    assert kept
    assert kept[0]() is not None
    del value
    assert kept[0]() is None
    assert book.read() == {"loss": 1.0}


def test_figures_of_many_steps_and_kinds_are_added_exactly() -> None:
    kinds = [torch.float32, torch.float64, torch.bfloat16, torch.int64]
    book, total, weight = MetricAccumulator(World.single()), 0.0, 0.0
    for step in range(3 * NOTES // 2):  # some are added up before they are read
        value = torch.tensor(0.1 * step if step % 4 < 3 else 2**40 + step, dtype=kinds[step % 4])
        book.add({"loss": Metric(value, 0.1), "steps": Metric(1.0)})
        total, weight = total + value.item(), weight + 0.1
        if step == NOTES // 4:
            saved = book.rank_state()
            book.load_rank_state([saved])
    assert book.read() == {"loss": total / weight, "steps": 1.0}


def windows(size: int) -> list[MetricAccumulator]:
    """Books of all ranks with an open window."""
    books = [MetricAccumulator(rank_of(rank, size)) for rank in range(size)]
    for rank, book in enumerate(books):
        book.add({"loss": Metric(torch.tensor(0.1 + rank), 10.0), "lr": Metric(0.3, same=True)})
        book.add({"loss": Metric(torch.tensor(0.7 * rank), 10.0), "lr": Metric(0.1, same=True)})
    return books


@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_an_open_window_survives_at_any_world_size(after: int) -> None:
    saved = json.loads(json.dumps([book.rank_state() for book in windows(3)]))
    resumed = [MetricAccumulator(rank_of(rank, after)) for rank in range(after)]
    for book in resumed:
        book.add({"old": Metric(1.0)})  # is replaced
        book.load_rank_state(saved)
    before = [book.rank_state() for book in windows(3)]
    now = [book.rank_state() for book in resumed]
    if after == 3:
        assert now == before, "to the bit at the same world size"
    for name in ("loss", "lr"):
        assert sum(state[name][0] for state in now) == pytest.approx(sum(state[name][0] for state in before), rel=1e-15)
        assert {state[name][1] for state in now} == {before[0][name][1]}
    assert all("old" not in state for state in now)


def test_an_empty_window_survives_too() -> None:
    book = MetricAccumulator(World.single())
    book.load_rank_state([{}, {}])
    assert book.read() == {}


def on_ranks() -> None:
    world = World.join(device="cpu", timeout=60)
    book = MetricAccumulator(world)
    for step in range(3):  # every rank has its part of a sum; the weight is the whole one's
        book.add({"loss": Metric(torch.tensor(float(world.rank + step)), 6.0), "lr": Metric(0.1 * step, same=True)})
        book.add({"norm": Metric(torch.tensor(2.0), same=True)})
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        figures = book.read()
    sent = [event.name for event in watched.events() if event.name.startswith("gloo:")]
    assert sent == ["gloo:all_gather"], sent
    total = sum(rank + step for rank in range(world.size) for step in range(3))
    assert figures == {"loss": total / 18, "lr": pytest.approx(0.1), "norm": 2.0}
    assert world.gather(figures) == [figures] * world.size
    world.leave()


@pytest.mark.parametrize("nproc", [2, 3])
def test_ranks_add_up_in_one_message(tmp_path: Path, nproc: int) -> None:
    run_on_ranks(on_ranks, nproc, logs=tmp_path)
