"""Every optimizer on real ranks: what a step does, what a bad one does not, and what survives a save."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samestep import SGD, AdamW, AdamW8bit, Group, Muon
from samestep.checkpoint.store import Store
from samestep.parallel.wrap import full_tensor
from samestep.train.learner.learner import Learner
from samestep.train.learner.optimizers.choices import CustomOptimizer
from samestep.train.logging.metrics import MetricAccumulator
from samestep.world.world import World
from toys import (
    SETTINGS,
    Case,
    Net,
    Points,
    close,
    default_dtype,
    error,
    feed_of,
    in_order,
    in_worlds,
    learner_of,
    made,
    on_ranks,
    same_everywhere,
    weights_of,
)

BATCH = 6
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": AdamW(eps=1e-6), "clip_value": 0.3},
    "sgd": {"optimizer": SGD(nesterov=True)},
    "muon": {"optimizer": Muon()},
    "adagrad": {"optimizer": CustomOptimizer(torch.optim.Adagrad), "clip_value": 0.3},
    "adafactor": {"optimizer": CustomOptimizer(torch.optim.Adafactor), "groups": {"norm.*": Group(rate=0.5)}},
}
"""By changes of the settings. The last has a state of other shapes, but cannot be sharded."""


def learner_with(world: World, strategy: str, chosen: str, seed: int = 1, **changes: Any) -> Learner:
    settings = replace(SETTINGS, **OPTIMIZERS[chosen])
    return learner_of(made(Net, seed), world, strategy, **{"settings": settings, "rate": lambda step: 0.02, **changes})


def state_of(learner: Learner) -> dict[str, Any]:
    """The optimizer's state, as a copy; how its tensors are sharded may differ."""
    state = dict(learner.state_dict()["optimizer"])
    others = state.pop("made", {"numbers": {}, "groups": []})
    numbers = {name: str(others[name]) for name in ("numbers", "groups")}
    return numbers | {name: full_tensor(value).detach().clone() for name, value in state.items()}


def same_state(actual: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert sorted(actual) == sorted(wanted)
    for name, value in wanted.items():
        assert torch.equal(actual[name], value) if isinstance(value, Tensor) else actual[name] == value, name


def optimizers(strategy: str) -> list[str]:
    return [chosen for chosen in OPTIMIZERS if (strategy, chosen) != ("fsdp", "adafactor")]


def a_bad_step_moves_nothing(world: World, strategy: str) -> None:
    """Neither the first nor a later one; all good ones then do what they do without the bad ones."""
    for chosen in optimizers(strategy):
        rows = Points(4 * BATCH)
        for step in (0, 2):
            rows.x[step * BATCH + 2] = float("nan")  # on one rank only
        feed = feed_of(rows, world, BATCH, 2, steps=4, order=in_order(rows, BATCH))
        learner, undisturbed = (learner_with(world, strategy, chosen) for _ in range(2))
        for step in range(4):
            weights, state = weights_of(learner), state_of(learner)
            learner.update(feed[step], error)
            if step in (0, 2):
                close(weights_of(learner), weights, tolerance=0)
                same_state(state_of(learner), state)
            else:
                undisturbed.update(feed[step], error)
                assert not torch.equal(weights_of(learner)["first.weight"], weights["first.weight"]), chosen
        close(weights_of(learner), weights_of(undisturbed), tolerance=0)
        same_state(state_of(learner), state_of(undisturbed))
        same_everywhere(world, weights_of(learner).values())


def an_overflow_of_fp16_moves_nothing(world: World, strategy: str) -> None:
    with default_dtype(torch.float32):
        for chosen in optimizers(strategy):
            learner = learner_with(world, strategy, chosen, mixed_precision="fp16")
            exact = learner_with(world, strategy, chosen)
            assert learner._scale is not None
            begun = weights_of(learner)
            feed = feed_of(Points(4 * BATCH), world, BATCH, 2, steps=4)
            learner._scale.scale.fill_(2.0**126)
            learner.update(feed[0], error)
            close(weights_of(learner), begun, tolerance=0)
            learner._scale.scale.fill_(2.0**8)
            for step in (1, 2):
                learner.update(feed[step], error)
                exact.update(feed[step], error)
            moved = torch.cat([(weights_of(exact)[n] - begun[n]).flatten() for n in begun])
            apart = torch.cat([(weights_of(exact)[n] - weights_of(learner)[n]).flatten() for n in begun])
            assert apart.norm() < 0.1 * moved.norm(), (chosen, apart.norm(), moved.norm())


def a_save_of_any_world_goes_on(world: World, strategy: str) -> None:
    """Saved by a single process and by these ranks; loaded into a fresh learner, which goes on as the first would."""
    single = World.single()
    for chosen in optimizers(strategy):
        for saving in (single, world):
            rows = Points(6 * BATCH)
            folder = Path(world.share(tempfile.mkdtemp()))
            first = learner_with(saving, strategy, chosen)
            feed = feed_of(rows, saving, BATCH, 2, steps=6, order=in_order(rows, BATCH))
            for step in range(3):
                first.update(feed[step], error)
            if saving is world or world.is_main:
                Store(folder, saving).save(3, {"model": first}, {})
            world.barrier()
            resumed = learner_with(world, strategy, chosen, seed=2)
            store = Store(folder, world)
            found = store.newest()
            assert found is not None
            store.load(found, {"model": resumed})
            same_state(state_of(resumed), state_of(first))
            again = feed_of(rows, world, BATCH, 2, steps=6, order=in_order(rows, BATCH))
            for step in range(3, 6):
                first.update(feed[step], error)
                resumed.update(again[step], error)
            close(weights_of(resumed), weights_of(first), tolerance=0 if saving is world else 1e-9)
            world.barrier()


def polynomial(values: Tensor, iterations: int = 5) -> Tensor:
    """What Muon's iteration does to the singular values."""
    values = values / values.square().sum().sqrt()
    for _ in range(iterations):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return values


def muon_is_momentum_with_new_singular_values(world: World, strategy: str) -> None:
    """By hand, of whole matrices: the same vectors, with singular values near 1."""
    rows = Points(4 * BATCH)
    feed = feed_of(rows, world, BATCH, 2, steps=4, order=in_order(rows, BATCH))
    settings = replace(SETTINGS, optimizer=Muon(momentum=0.9, adamw=["last.*"]), clip=0.0)
    learner = learner_of(made(Net), world, strategy, settings=settings)
    theirs = made(Net)
    others = [p for name, p in theirs.named_parameters() if name not in ("first.weight", "last.weight")]
    groups = [{"params": others, "weight_decay": 0.0}, {"params": [theirs.last.weight], "weight_decay": 0.1}]
    adamw = torch.optim.AdamW(groups, betas=SETTINGS.betas, eps=SETTINGS.eps, foreach=False)
    momentum = torch.zeros_like(theirs.first.weight)
    for step in range(4):
        learner.update(feed[step], error)
        batch = rows.rows(torch.arange(step * BATCH, (step + 1) * BATCH).numpy())
        error(theirs, batch)["error"].mean().backward()
        rate = 0.01 / (1 + step)
        for group in adamw.param_groups:
            group["lr"] = rate
        adamw.step()
        weight = theirs.first.weight
        assert weight.grad is not None
        momentum = 0.9 * momentum + 0.1 * weight.grad
        u, s, v = torch.linalg.svd(0.1 * weight.grad + 0.9 * momentum, full_matrices=False)
        with torch.no_grad():
            weight.mul_(1 - rate * SETTINGS.weight_decay)
            weight.sub_(rate * 0.2 * 5**0.5 * (u * polynomial(s)) @ v)
        theirs.zero_grad()
    close(weights_of(learner), theirs.state_dict(), tolerance=1e-9)


def groups_differ_in_rate_decay_and_time(world: World, strategy: str) -> None:
    """By hand: a parameter that is not trained has no gradient."""
    rows = Points(5 * BATCH)
    feed = feed_of(rows, world, BATCH, 2, steps=5, order=in_order(rows, BATCH))
    groups = {
        "last.bias": Group(rate=3.0),  # the first match counts
        "last.*": Group(rate=0.5, decay=0.7),
        "table.*": Group(train_from=2),
        "f*": Group(train_from=1, train_until=3),
    }
    settings = replace(SETTINGS, groups=groups, clip_value=0.2)
    learner = learner_of(made(Net), world, strategy, settings=settings, rate=lambda step: 0.01)
    theirs = made(Net)
    named = dict(theirs.named_parameters())
    factors = {"last.bias": 3.0, "last.weight": 0.5}
    decays = {"last.weight": 0.7, "first.weight": 0.1}
    by_hand = torch.optim.AdamW(
        [
            {"params": [p], "lr": 0.01 * factors.get(name, 1.0), "weight_decay": decays.get(name, 0.0)}
            for name, p in named.items()
        ],
        betas=SETTINGS.betas,
        eps=SETTINGS.eps,
        foreach=False,
    )
    for step in range(5):
        state = state_of(learner)
        learner.update(feed[step], error)
        batch = rows.rows(torch.arange(step * BATCH, (step + 1) * BATCH).numpy())
        error(theirs, batch)["error"].mean().backward()
        idle = [n for n in named if (n[:5] == "table" and step < 2) or (n[:5] == "first" and step not in (1, 2))]
        for name in idle:
            named[name].grad = None
            for key in ("step", "exp_avg", "exp_avg_sq"):
                assert torch.equal(state_of(learner)[f"state.{name}.{key}"], state[f"state.{name}.{key}"])
        torch.nn.utils.clip_grad_value_(theirs.parameters(), 0.2)
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), SETTINGS.clip)
        by_hand.step()
        by_hand.zero_grad()
        close(weights_of(learner), theirs.state_dict(), tolerance=1e-9)


def a_step_in_which_nothing_is_trained(world: World, strategy: str) -> None:
    for optimizer in (AdamW(), SGD()):
        settings = replace(SETTINGS, optimizer=optimizer, groups={"*": Group(train_from=1)})
        learner = learner_of(made(Net), world, strategy, settings=settings)
        feed = feed_of(Points(2 * BATCH), world, BATCH, 2, steps=2)
        learner.update(feed[0], error)
        close(weights_of(learner), made(Net).state_dict(), tolerance=0)
        learner.update(feed[1], error)
        assert not torch.equal(weights_of(learner)["first.weight"], made(Net).first.weight)


class Large(nn.Module):
    """One matrix is large enough to have 8-bit moments."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.layers(x)


@in_worlds([(1, "lone"), (2, "ddp"), (3, "ddp")])
def eight_bits(world: World, strategy: str) -> None:
    """Its loss curve is that of a single process; a resumed one is the same to the bit, at the same world size."""
    pytest.importorskip("torchao")
    settings = replace(SETTINGS, optimizer=AdamW8bit(), clip=0.0)

    def losses(learner: Learner, world: World, steps: range) -> list[float]:
        feed, found = feed_of(Points(24), world, 8, 3, steps=8), []
        for step in steps:
            accumulator = MetricAccumulator(world)
            accumulator.add(learner.update(feed[step], error))
            found.append(accumulator.read()["loss"])
        return found

    def fresh(world: World, seed: int = 1) -> Learner:
        return learner_of(made(Large, seed), world, strategy, settings=settings, rate=lambda step: 0.01)

    # compiling one step takes most of a minute, and computes the same
    with default_dtype(torch.float32), torch.compiler.set_stance("force_eager"):
        alone = losses(fresh(World.single()), World.single(), range(8))
        learner = fresh(world)
        curve = losses(learner, world, range(4))
        folder = Path(world.share(tempfile.mkdtemp()))
        Store(folder, world).save(4, {"model": learner}, {})
        curve += losses(learner, world, range(4, 8))
        assert curve == pytest.approx(alone, rel=2e-2)
        assert curve[-1] < curve[0]
        resumed = fresh(world, seed=2)
        store = Store(folder, world)
        found = store.newest()
        assert found is not None
        store.load(found, {"model": resumed})
        assert losses(resumed, world, range(4, 8)) == curve[4:]
        close(weights_of(resumed), weights_of(learner), tolerance=0)
        same_state(state_of(resumed), state_of(learner))
        assert state_of(learner)["state.layers.2.weight.exp_avg.codes"].dtype == torch.uint8
        other = fresh(world, seed=3)  # saved by a single process of another learner: whatever number of ranks loads it
        single = Store(Path(world.share(tempfile.mkdtemp())), World.single())
        if world.is_main:
            single.save(8, {"model": learner}, {})
        world.barrier()
        found = single.with_world(world).newest()
        assert found is not None
        single.with_world(world).load(found, {"model": other})
        same_state(state_of(other), state_of(learner))
        rows = Points(8)
        rows.x[3] = float("nan")
        other.update(feed_of(rows, world, 8, 3, steps=1)[0], error)
        same_state(state_of(other), state_of(learner))
        close(weights_of(other), weights_of(learner), tolerance=0)


CASES: list[Case] = [
    a_bad_step_moves_nothing,
    an_overflow_of_fp16_moves_nothing,
    a_save_of_any_world_goes_on,
    muon_is_momentum_with_new_singular_values,
    groups_differ_in_rate_decay_and_time,
    a_step_in_which_nothing_is_trained,
    eight_bits,
]

test_on_ranks = on_ranks(CASES)
