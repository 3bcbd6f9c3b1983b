"""Recorded calls of a network compute what the network computes, on a GPU; without gradients nothing is recorded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samestep.parallel.loss_graphs import LossGraphs, is_recordable
from samestep.parallel.wrap import SingleProcess, wrap
from samestep.train.learner.learner import Learner
from samestep.train.learner.preparation import Choices
from samestep.world.world import World
from toys import SETTINGS, Points, default_dtype, feed_of, rate, run_on_ranks, weights_of


class Recurrent(nn.Module):
    """Feeds its output back to itself many times: small kernels, one after the other."""

    is_recordable = True

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(30):
            x = x + torch.tanh(self.inner(self.frozen(x)))
        return x


class SyncsInTheMiddle(Recurrent):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.0 if bool((x > 0).any()) else 0.5)  # the host waits for a value


def squares(module: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = module(batch["x"]).float()
    return {"error": found.square().sum(1), "size": batch["x"].abs().sum(1).float()}


def network(kind: type[nn.Module] = Recurrent) -> nn.Module:
    torch.manual_seed(0)
    with default_dtype(torch.float32):
        return kind()


def batch_of(rows: int, seed: int = 0, device: str = "cuda") -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(rows, 4, generator=generator).to(device)}


def called(parallel: SingleProcess, batch: Mapping[str, Tensor], loss: Any = squares) -> tuple[Any, list[Tensor]]:
    """Values a row, and the gradients of their sum."""
    trained = [p for p in parallel.inner.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    rows = parallel.call(loss, batch)
    (rows["error"] * 3).sum().backward()
    return {name: value.clone() for name, value in rows.items()}, [p.grad.clone() for p in trained]


@pytest.mark.gpu
@pytest.mark.gpu
@pytest.mark.parametrize("compute", [None, torch.bfloat16])
def test_a_replay_gives_the_same_values_and_gradients(compute: torch.dtype | None) -> None:
    plain, recorded = (SingleProcess(network().cuda(), compute) for _ in range(2))
    recorded.compiler = LossGraphs()
    for seed in range(4):
        for rows in (5, 2):
            with torch.autocast("cuda", compute, enabled=compute is not None):
                torch.testing.assert_close(
                    called(recorded, batch_of(rows, seed)), called(plain, batch_of(rows, seed)), rtol=1e-6, atol=1e-6
                )
        with torch.no_grad():  # an update in place, as an optimizer makes it
            for parallel in (plain, recorded):
                parallel.inner.inner.weight.add_(0.1)
    assert recorded.compiler.failure is None


@pytest.mark.gpu
@pytest.mark.gpu
def test_weights_that_were_moved_are_recorded_again() -> None:
    parallel = SingleProcess(network().cuda(), None)
    parallel.compiler = LossGraphs()
    called(parallel, batch_of(5))
    parallel.inner.inner.weight.data = parallel.inner.inner.weight.data * 2
    found = called(parallel, batch_of(5))
    parallel.compiler = None
    torch.testing.assert_close(found, called(parallel, batch_of(5)))


@pytest.mark.gpu
@pytest.mark.gpu
def test_a_loss_with_another_closure_is_not_replayed() -> None:
    parallel = SingleProcess(network().cuda(), None)
    parallel.compiler = LossGraphs()

    def scaled(factor: float) -> Any:
        return lambda module, batch: {"error": factor * squares(module, batch)["error"]}

    one, two = (called(parallel, batch_of(5), scaled(factor))[0]["error"] for factor in (1.0, 2.0))
    torch.testing.assert_close(2 * one, two)


@pytest.mark.gpu
@pytest.mark.gpu
def test_a_second_call_before_the_backward_pass_is_refused() -> None:
    parallel = SingleProcess(network().cuda(), None)
    parallel.compiler = LossGraphs()
    called(parallel, batch_of(5))
    first = parallel.call(squares, batch_of(5))["error"].sum()
    parallel.call(squares, batch_of(5, seed=1))
    with pytest.raises(AssertionError, match="overwritten by another call"):
        first.backward()


@pytest.mark.gpu
@pytest.mark.gpu
def test_what_cannot_be_recorded_runs_as_it_is() -> None:
    plain, recorded = (SingleProcess(network(SyncsInTheMiddle).cuda(), None) for _ in range(2))
    recorded.compiler = LossGraphs()
    for seed in range(2):
        torch.testing.assert_close(called(recorded, batch_of(5, seed)), called(plain, batch_of(5, seed)))
    assert "captur" in (recorded.compiler.failure or "")
    assert torch.randn(3, device="cuda").isfinite().all(), "random numbers are drawn as before"


def in_float32(module: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"error": squares(module, {"x": batch["x"].float()})["error"]}


def trained(world: World, known: dict[str, Any], graphs: bool, kind: type[nn.Module] = Recurrent) -> Learner:
    """`known` is what a run directory keeps."""

    def fix(what: str, decide: Any) -> Any:
        if what not in known:
            known[what] = decide()
        return known[what]

    choices = Choices(cuda_graphs=graphs, known=lambda: known, fix=fix)
    learner = Learner(wrap(network(kind), world, "ddp", None), world, rate, SETTINGS, choices=choices)
    feed = feed_of(Points(25), world, 11, 4, steps=3)
    for step in range(3):
        learner.update(feed[step], in_float32)
    return learner


def records_what_it_does_as_it_is(world: World) -> None:
    known: dict[str, Any] = {}
    plain = weights_of(trained(world, {}, graphs=False))
    for _ in range(2):  # the second launch is told
        learner = trained(world, known, graphs=True)
        assert known == {"recorded/model": True}
        assert learner._preparation.cuda_graphs
        torch.testing.assert_close(weights_of(learner), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.gpu
def test_a_learner_records_where_the_host_is_slow_and_a_second_launch_does_the_same() -> None:
    records_what_it_does_as_it_is(World.single("cuda"))


def two_on_one_card() -> None:
    world = World.join(device="cuda:0", backend="gloo")
    records_what_it_does_as_it_is(world)
    world.leave()


@pytest.mark.gpu
@pytest.mark.gpu
def test_gradients_of_a_recording_are_reduced_over_ranks(tmp_path: Path) -> None:
    run_on_ranks(two_on_one_card, 2, logs=tmp_path)


@pytest.mark.gpu
@pytest.mark.gpu
def test_a_learner_that_cannot_be_recorded_goes_on_as_it_is() -> None:
    known: dict[str, Any] = {}
    world = World.single("cuda")
    learner = trained(world, known, graphs=True, kind=SyncsInTheMiddle)
    assert known == {"recorded/model": False} and not learner._preparation.cuda_graphs
    torch.testing.assert_close(weights_of(learner), weights_of(trained(world, {}, False, SyncsInTheMiddle)))


def test_nothing_is_recorded_without_gradients() -> None:
    parallel = SingleProcess(network(), None)
    parallel.compiler = LossGraphs()
    with torch.no_grad():
        rows = parallel.call(squares, batch_of(5, device="cpu"))
    torch.testing.assert_close(rows, squares(parallel.inner, batch_of(5, device="cpu")))
    assert parallel.compiler.is_new(squares)


def test_a_network_must_say_that_it_can_be_recorded() -> None:
    assert is_recordable(network()) and not is_recordable(nn.Linear(2, 2))
