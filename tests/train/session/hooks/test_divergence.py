"""Ranks that do not hold the same parameters are stopped, by name; those that do are not disturbed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from samestep import Bench, Config, Fit, Recipe, Stage, Tick
from samestep.checkpoint.manifest import find_checkpoints
from samestep.core.errors import Diverged
from samestep.core.json_files import JsonLines
from samestep.launching.local import start
from samestep.train.learner.content_hash import CHUNK, fingerprint, fingerprint_factors
from samestep.train.learner.learner import Learner
from samestep.train.logging.metrics import Metrics
from samestep.train.session.entry import train_with
from samestep.train.session.hooks.divergence import ParameterMismatch, SameParameters, find_mismatch
from samestep.world.world import World
from toys import Net, Points, error, feed_of, learner_of, made, run_on_ranks

pytestmark = pytest.mark.timeout(900)
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.complex64]


def fingerprint_of(tensor: Tensor) -> int:
    return int(fingerprint(tensor, fingerprint_factors([tensor])))


def flipped(tensor: Tensor, bit: int) -> Tensor:
    """A copy with one bit of its memory the other way."""
    copy = tensor.clone()
    memory = copy.reshape(-1).view(torch.uint8)
    memory[bit // 8] ^= 1 << bit % 8
    return copy


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(TYPES), st.integers(1, 300), st.integers(0, 2**31), st.data())
def test_one_flipped_bit_is_never_missed(dtype: torch.dtype, size: int, seed: int, data: st.DataObject) -> None:
    values = torch.randint(-100, 100, (size,), generator=torch.Generator().manual_seed(seed)).to(dtype)
    other = flipped(values, data.draw(st.integers(0, 8 * size * values.element_size() - 1)))
    assert fingerprint_of(values) == fingerprint_of(values.clone())
    assert fingerprint_of(values) != fingerprint_of(other)


def test_a_tensor_of_many_chunks_counts_every_bit_and_position() -> None:
    values = torch.randn(2 * CHUNK + 5, generator=torch.Generator().manual_seed(0))
    seen = {fingerprint_of(values)}
    for bit in (0, 31, 32 * CHUNK - 1, 32 * CHUNK, 64 * CHUNK + 17, 32 * len(values) - 1):
        seen.add(fingerprint_of(flipped(values, bit)))
    seen.add(fingerprint_of(flipped(flipped(values, 31), 63)))  # two signs
    first, second, rest = values.split(CHUNK)
    seen.add(fingerprint_of(torch.cat([second, first, rest])))
    assert len(seen) == 9


def test_bits_count_as_they_are() -> None:
    assert fingerprint_of(torch.tensor([0.0, 1.0])) != fingerprint_of(torch.tensor([-0.0, 1.0]))
    assert fingerprint_of(torch.tensor([1.0, 2.0])) != fingerprint_of(torch.tensor([2.0, 1.0]))
    nan = torch.tensor([torch.nan])
    assert fingerprint_of(nan) == fingerprint_of(nan.clone())
    assert fingerprint_of(nan) != fingerprint_of(flipped(nan, 0))
    grid = torch.arange(6.0).reshape(2, 3)
    assert fingerprint_of(grid.t()) == fingerprint_of(grid.t().contiguous()) != fingerprint_of(grid), (
        "by position, not by memory"
    )
    assert fingerprint_of(torch.tensor(3.0)) != fingerprint_of(torch.tensor(4.0))
    assert fingerprint_of(torch.empty(0, 4)) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
def test_a_gpu_finds_the_same_number_and_nobody_waits_for_it(dtype: torch.dtype) -> None:
    values = torch.randint(-100, 100, (CHUNK + 7,), generator=torch.Generator().manual_seed(1)).to(dtype)
    there = values.cuda()
    factors = fingerprint_factors([there])
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = fingerprint(there, factors)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(found) == fingerprint_of(values)


@pytest.mark.parametrize(
    ("prints", "ranks", "majority", "tensors"),
    [
        ([[1, 2, 3], [1, 2, 4], [1, 2, 3]], [1], True, [2]),
        ([[9, 8, 3], [1, 2, 3], [1, 2, 3]], [0], True, [0, 1]),
        ([[1, 2, 3], [1, 2, 4]], [1], False, [2]),
        ([[1, 1], [1, 2], [1, 3]], [1, 2], False, [1]),
        ([[1], [1], [2], [2]], [2, 3], False, [0]),
        ([[2], [1], [3], [1], [1]], [0, 2], True, [0]),
    ],
)
def test_who_differs(prints: Sequence[Sequence[int]], ranks: list[int], majority: bool, tensors: list[int]) -> None:
    assert find_mismatch(prints) == ParameterMismatch(ranks, majority, tensors)


def change(learner: Learner, name: str) -> None:
    """The smallest change there is."""
    parameter = learner.replicated_parameters()[name]
    with torch.no_grad():
        parameter.copy_(flipped(parameter, 0))


def loop(
    learners: Sequence[Learner], world: World, every: int, steps: int, plant: Callable[[int], None], last: bool = True
) -> SameParameters:
    """The loop's part: all learners take steps of two micro-batches, then the check runs."""
    check = SameParameters(learners, world, every)
    feed = feed_of(Points(60), world, batch=4 * world.size, micro=2, steps=steps)
    for step in range(steps):
        micro_batches = feed[step]
        for learner in learners:
            learner.update(micro_batches, error)
        plant(step)
        check.after_step(Tick(step, 0, False), {}, last=last and step == steps - 1)
    return check


def messages(learners: Sequence[Learner], world: World, every: int, steps: int) -> int:
    """How many messages the check of so many steps takes."""
    before = world.control._get_sequence_number_for_group()
    check = SameParameters(learners, world, every)
    for step in range(steps):
        check.after_step(Tick(step, 0, False), {}, last=step == steps - 1)
    return int(world.control._get_sequence_number_for_group() - before)


def pair(world: World, strategy: str = "ddp") -> list[Learner]:
    frozen = made(Net)
    frozen.table.weight.requires_grad_(False)
    return [learner_of(made(Net), world, strategy), learner_of(frozen, world, strategy, name="judge")]


def stopped(world: World, step: int, learner: int, name: str, rank: int, **settings: Any) -> str:
    """The error of a run in which one rank's parameter changes after a step."""
    learners = pair(world)

    def plant(now: int) -> None:
        if now == step and world.rank == rank:
            change(learners[learner], name)

    with pytest.raises(Diverged) as caught:
        loop(learners, world, plant=plant, **settings)
    assert set(world.gather(str(caught.value))) == {str(caught.value)}, "the same message on all ranks"
    return str(caught.value)


def on_ranks() -> None:
    world = World.join(device="cpu", timeout=60)
    last, others = world.size - 1, "the others" if world.size > 2 else "rank 0"
    message = stopped(world, 4, 0, "norm.bias", rank=last, every=3, steps=9)
    assert "after step 6 (after step 3 they did)" in message
    assert f": rank {last} on {world.host} differs from {others} in " in message
    assert "do not trust checkpoints after step 3" in message
    # A frozen tensor of the other learner, which does not spread to any other before the step is over.
    message = stopped(world, 5, 1, "table.weight", rank=last, every=6, steps=7)
    assert "after step 6 (they were not compared before)" in message
    assert "in 1 of 14 tensors, the first 'table.weight' of learner 'judge'" in message
    message = stopped(world, 6, 0, "last.bias", rank=last, every=100, steps=7)
    assert "after step 7 " in message, "the last step is always compared"
    if world.size > 2:
        assert ": rank 0 on " in stopped(world, 0, 0, "first.weight", rank=0, every=1, steps=5)
    message = stopped(world, 0, 0, "first.weight", rank=last, every=1, steps=5)
    assert "after step 1 " in message, "found two steps later, with the numbers of its own step"

    loop(pair(world), world, every=1, steps=5, plant=lambda step: None)
    check = loop(pair(world), world, every=3, steps=3, plant=lambda step: None, last=False)
    assert check._taken is not None, "an agreed stop may find it there"
    check.finish()
    assert check._taken is check._sent is None
    learners = pair(world)
    check = loop(learners, world, every=3, steps=3, plant=lambda step: change(learners[0], "norm.bias"), last=False)
    check.finish()  # the same change on every rank is none
    assert messages(pair(world), world, every=2, steps=6) == 3
    assert messages(pair(world), world, every=0, steps=6) == 0
    assert messages(pair(world, "fsdp"), world, every=2, steps=6) == 0, "no parameter is there twice"
    world.leave()


@pytest.mark.parametrize("nproc", [2, 3])
def test_a_difference_is_named_by_rank_tensor_and_step(tmp_path: Path, nproc: int) -> None:
    run_on_ranks(on_ranks, nproc, logs=tmp_path)


def test_alone_there_is_nothing_to_compare() -> None:
    world = World.single()
    check = loop(pair(world), world, every=1, steps=3, plant=lambda step: None)
    check.finish()


@dataclass(frozen=True)
class Planted(Config):
    """A run in which one rank may go astray."""

    astray: int = -1
    """The step after which the last rank's parameters change."""


class Astray(Fit):
    def step(self, tick: Tick) -> Metrics:
        metrics = super().step(tick)
        world = self.learner.world
        if tick.step + 1 == self.after and world.rank == world.size - 1:
            change(self.learner, "last.bias")
        return metrics


def build(bench: Bench) -> Fit:
    task = Astray(bench.learner(made(Net)), bench.feed(Points(40)), error)
    task.after = bench.config.astray  # type: ignore[attr-defined]
    return task


recipe = Recipe(Planted, lambda config: [Stage("fit", build)])


def settings_of(out: Path, name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "out": str(out),
        "batch_size": 3,
        "global_batch_size": 10,
        "max_steps": 8,
        "distributed": {"device": "cpu"},
        "checkpoint": {"every_steps": 2, "keep_last": 9},
        "log": {"tensorboard": False, "every": 1},
        **more,
    }


def test_a_run_that_went_astray_ends_with_the_reason(tmp_path: Path) -> None:
    config = settings_of(tmp_path, "a", astray=5, watch={"hash_every": 2})
    workers = start(train_with, 3, "test_divergence", config, logs=tmp_path / "logs")
    assert workers.wait(200) == [1, 1, 1], workers.output(0)
    assert "after step 6 (after step 4 they did): rank 2 on " in workers.output(0)
    assert "Traceback" not in workers.output(0)
    assert max(found.step for found in find_checkpoints(tmp_path / "a/checkpoints/fit")) < 8, "stopped before the end"


def test_a_healthy_run_is_the_same_with_and_without(tmp_path: Path) -> None:
    saved, metrics = [], []
    for every in (0, 1):
        config = settings_of(tmp_path, f"every_{every}", watch={"hash_every": every}, checkpoint={"weights": True})
        run_on_ranks(train_with, 2, "test_divergence", config, logs=tmp_path / f"logs_{every}")
        saved.append(torch.load(tmp_path / f"every_{every}/weights/model_step_8.pt", weights_only=True))
        rows = JsonLines(tmp_path / f"every_{every}/metrics.jsonl")
        metrics.append([{name: value for name, value in row.items() if not name.endswith("/s")} for row in rows])
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])
    assert metrics[0] == metrics[1]
