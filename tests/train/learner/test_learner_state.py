"""What a learner carries over: a resumed one is the same to the bit; neither saving nor warming up leaves a trace."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from samestep.checkpoint.store import Store
from samestep.world.world import World
from toys import (
    NOT_SHARDED,
    Case,
    Net,
    Points,
    close,
    error,
    feed_of,
    in_worlds,
    learner_of,
    made,
    moments_of,
    on_ranks,
    run_on_ranks,
    weights_of,
)


class Wide(nn.Module):
    """Several of DDP's buckets, registered in another order than they are used in: its buckets are rebuilt for sure."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(300, 2)
        self.inner = nn.ModuleList(nn.Linear(300, 300) for _ in range(5))
        self.first = nn.Linear(4, 300)
        self.shard_units = list(self.inner)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        for number in (3, 0, 4, 1, 2):
            x = torch.tanh(self.inner[number](x))
        return self.last(x)


def run_wide(folder: Path, strategy: str, resume: bool) -> None:
    """Steps 0 to 5 with a save after the third; or, in fresh processes, only 3 to 5 from that save."""
    world = World.join(device="cpu", timeout=60)
    learner = learner_of(made(Wide, seed=2 if resume else 1), world, strategy)
    store = Store(folder / "store", world)
    if resume:
        found = store.newest()
        assert found is not None
        store.load(found, {"learner": learner})
    feed = feed_of(Points(100), world, 12, 2, steps=6)
    for step in range(3 if resume else 0, 6):
        learner.update(feed[step], error)
        if step == 2:
            store.save(3, {"learner": learner}, {})
    torch.save(
        {**weights_of(learner), **moments_of(learner)},
        folder / f"{'resumed' if resume else 'uninterrupted'}_{world.rank}.pt",
    )
    world.leave()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_three_ranks_resume_to_the_bit(tmp_path: Path, strategy: str) -> None:
    run_on_ranks(run_wide, 3, tmp_path, strategy, False, logs=tmp_path / "uninterrupted")
    run_on_ranks(run_wide, 3, tmp_path, strategy, True, logs=tmp_path / "resumed")
    first, *others = [
        torch.load(tmp_path / f"{kind}_{rank}.pt") for kind in ("uninterrupted", "resumed") for rank in range(3)
    ]
    for other in others:
        assert sorted(other) == sorted(first)
        assert all(torch.equal(other[name], first[name]) for name in first)


def a_save_changes_nothing(world: World, strategy: str) -> None:
    """Also before the first update, when torch would make the missing Adam state by a step that counts."""
    feed = feed_of(Points(16), world, 8, 2, steps=3)
    plain, saved = (learner_of(made(Net), world, strategy) for _ in range(2))
    assert all(float(value) == 0 for name, value in moments_of(saved).items() if name.endswith(".step"))
    for step in range(3):
        saved.state_dict()
        for learner in (plain, saved):
            learner.update(feed[step], error)
    close(weights_of(saved), weights_of(plain), tolerance=0)


def settings_come_from_the_config(world: World, strategy: str) -> None:
    """A checkpoint brings moments, not settings: what the user may change on resume must stay changed."""
    micro_batches = feed_of(Points(8), world, 8, 2, steps=1)[0]
    first = learner_of(made(Net), world, strategy, rate=lambda update: 0.5)
    first.update(micro_batches, error)
    second = learner_of(made(Net, seed=2), world, strategy, rate=lambda update: 0.0)
    second.load_state_dict(first.state_dict())
    assert second.updates == 1
    close(weights_of(second), weights_of(first), tolerance=0)
    close(moments_of(second), moments_of(first), tolerance=0)
    second.update(micro_batches, error)
    close(weights_of(second), weights_of(first), tolerance=0)


def whole_weights_go_out_and_in(world: World, strategy: str) -> None:
    learner = learner_of(made(Net), world, strategy)
    out = learner.weights(full=True)
    if world.is_main:
        close(out, made(Net).state_dict(), tolerance=0)
    learner.load_weights(made(Net, seed=2).state_dict())
    close(weights_of(learner), made(Net, seed=2).state_dict(), tolerance=0)
    with learner.inference() as module:
        before = module(torch.ones(1, 4), torch.ones(1, dtype=torch.int64))
    learner.load_weights(made(Net, seed=3).state_dict())
    with learner.inference() as module:  # an unsharded copy from the inference before must not linger
        after = module(torch.ones(1, 4), torch.ones(1, dtype=torch.int64))
    wanted = made(Net, seed=3)(torch.ones(1, 4), torch.ones(1, dtype=torch.int64))
    torch.testing.assert_close(after, wanted.detach())
    assert not torch.equal(before, after)


class Counting(nn.Module):
    """Counts its training passes in buffers, one changed in place and one replaced, and draws from torch."""

    passes: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("passes", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        out = self.layer(x) * (torch.rand(2) > 0.5)
        if self.training:
            with torch.no_grad():
                self.passes += 1
                self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
        return out


@in_worlds(NOT_SHARDED)  # a sharded one has nothing to warm up
def warming_up_leaves_no_trace(world: World, strategy: str) -> None:
    results = []
    for settles in (True, False):
        learner = learner_of(made(Counting), world, strategy)
        learner._is_warmed_up = not settles
        torch.manual_seed(world.rank)
        feed = feed_of(Points(16), world, 8, 1, steps=2)
        drawn = 0
        for step in range(2):
            micro_batches = feed[step]
            drawn += len(micro_batches.batches)
            learner.update(micro_batches, error)
            assert float(learner.weights()["passes"]) == drawn
        results.append({**weights_of(learner), "next draw": torch.rand(3)})
    # the weights themselves differ in their last bits: that is what the warm-up is for
    close(results[0], results[1], tolerance=1e-12)
    assert torch.equal(results[0]["next draw"], results[1]["next draw"])


CASES: list[Case] = [
    a_save_changes_nothing,
    settings_come_from_the_config,
    whole_weights_go_out_and_in,
    warming_up_leaves_no_trace,
]

test_on_ranks = on_ranks(CASES)
