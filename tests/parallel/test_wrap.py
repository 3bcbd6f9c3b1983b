"""One interface for a module in a single process, replicated or sharded."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from samestep.core.errors import UserError
from samestep.parallel.build import build_uninitialized
from samestep.parallel.wrap import Replicated, Sharded, SingleProcess, full_tensor, local, total_norm, wrap
from samestep.world.world import World
from toys import Case, Net, made, on_ranks

X, TOKENS = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(2, 4), torch.tensor([1, 3])


def loss_of(module: nn.Module, factor: float) -> Tensor:
    return module(X * factor, TOKENS).square().sum()


def gradients_are_the_mean_over_ranks(world: World, strategy: str) -> None:
    parallel = wrap(made(Net), world, strategy, None)
    kind = {"lone": SingleProcess, "ddp": Replicated, "fsdp": Sharded}[strategy]
    assert isinstance(parallel, kind)
    assert parallel.replicated == (strategy != "fsdp")
    assert parallel.needs_warm_up == (strategy == "ddp" and world.size > 2)
    factors = [1.0, 2.0, 3.0]
    for number, factor in enumerate(factors):
        with parallel.syncing(last=number == 2):
            parallel.call(loss_of, factor + world.rank).backward()
    gradients = [p.grad for p in parallel.inner.parameters() if p.grad is not None]

    alone = made(Net)
    for rank in range(world.size):
        for factor in factors:
            (loss_of(alone, factor + rank) / world.size).backward()
    wanted = [p.grad for p in alone.parameters() if p.grad is not None]
    assert len(gradients) == len(wanted) == len(list(alone.parameters()))
    for mine, theirs in zip(gradients, wanted):
        torch.testing.assert_close(full_tensor(mine), theirs, rtol=1e-12, atol=1e-14)
    norm = total_norm(gradients)
    assert not isinstance(norm, DTensor)
    assert norm.shape == ()
    torch.testing.assert_close(norm, torch.stack([g.norm() for g in wanted]).norm(), rtol=1e-12, atol=0)
    assert world.gather(float(norm)) == [float(norm)] * world.size, "the same bits on every rank"


def each_rank_holds_a_shard(world: World, strategy: str) -> None:
    parallel = wrap(made(Net), world, strategy, None)
    own = sum(local(p).numel() for p in parallel.inner.parameters())
    total = sum(p.numel() for p in made(Net).parameters())
    parts = world.gather(own)
    if strategy == "fsdp":
        assert sum(parts) == total
        assert max(parts) < total or world.size == 1
        assert isinstance(parallel.inner.get_submodule("first"), FSDPModule), "a unit of its own"
    else:
        assert parts == [total] * world.size
    for name, parameter in parallel.inner.named_parameters():
        assert torch.equal(full_tensor(parameter.detach()), made(Net).state_dict()[name])


def calls_are_recorded(world: World, strategy: str) -> None:
    parallel = wrap(made(Net), world, strategy, None)
    assert not parallel.called
    with torch.no_grad():
        parallel.inner.get_submodule("first")(X)
        assert not parallel.called, "a submodule is not the whole module"
    parallel = wrap(made(Net), world, strategy, None)
    parallel.call(loss_of, 1.0)
    assert parallel.called
    parallel.called = False
    assert not parallel.called


def reshard_frees_what_was_gathered(world: World, strategy: str) -> None:
    parallel = wrap(made(Net), world, strategy, None)
    before = sum(local(p).numel() for p in parallel.inner.parameters())
    with torch.no_grad():
        loss_of(parallel.inner, 1.0)
    parallel.reshard()
    assert sum(local(p).numel() for p in parallel.inner.parameters()) == before


def nothing_to_learn_is_refused(world: World, strategy: str) -> None:
    with pytest.raises(UserError, match="Net has no trainable parameter, so there is nothing to learn"):
        wrap(made(Net).requires_grad_(False), world, strategy, None)


class Tied(Net):
    """A head that shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tied = nn.Linear(5, 5, bias=False)
        self.tied.weight = self.table.weight


@torch.no_grad()
def number(module: nn.Module) -> None:
    for value, parameter in enumerate(module.parameters()):
        local(parameter).fill_(value)


def tied_parameters_stay_tied(world: World, strategy: str) -> None:
    """Torch's own to_empty makes two tensors of them."""
    parallel = wrap(build_uninitialized(Tied), world, strategy, None, number)
    module = parallel.inner
    assert module.get_parameter("tied.weight") is module.get_parameter("table.weight")
    with parallel.syncing(last=True):
        parallel.call(loss_of, 1.0).backward()
    for value, parameter in enumerate(module.parameters()):
        assert bool((local(parameter) == value).all()), "as it was filled"


CASES: list[Case] = [
    gradients_are_the_mean_over_ranks,
    each_rank_holds_a_shard,
    calls_are_recorded,
    reshard_frees_what_was_gathered,
    nothing_to_learn_is_refused,
    tied_parameters_stay_tied,
]

test_on_ranks = on_ranks(CASES)
