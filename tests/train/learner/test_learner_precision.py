"""Low-precision arithmetic over float32 master weights: bf16 without a scale, fp16 with one that is saved."""

import pytest
import torch
from torch import Tensor, nn

from samestep.core.errors import RunFailed
from samestep.data.loading import Batch
from samestep.train.learner.learner import Learner
from samestep.train.learner.optimizer import LossScale, OptimSettings
from samestep.train.logging.metrics import MetricAccumulator
from samestep.world.world import World
from toys import (
    NOT_SHARDED,
    SETTINGS,
    UP_TO_2,
    Case,
    Net,
    Points,
    close,
    default_dtype,
    error,
    feed_of,
    in_worlds,
    learner_of,
    made,
    on_ranks,
    weights_of,
)


def trained(world: World, strategy: str, precision: str, steps: int = 6) -> Learner:
    # A large epsilon: Adam would otherwise blow the rounding of a gradient near zero up to a full step.
    settings = OptimSettings(SETTINGS.betas, 0.01, SETTINGS.weight_decay, SETTINGS.clip)
    learner = learner_of(made(Net), world, strategy, mixed_precision=precision, settings=settings)
    if learner._scale:
        learner._scale.scale.fill_(2.0**8)  # its usual start would overflow here, and skip the first steps
    feed = feed_of(Points(32), world, 8, 2, steps=steps)
    for step in range(steps):
        learner.update(feed[step], error)
    learner.check_finite()
    return learner


def low_precision_follows_float32(world: World, strategy: str) -> None:
    with default_dtype(torch.float32):
        exact = weights_of(trained(world, strategy, "none"))
        for precision, tolerance in (("bf16", 0.02), ("fp16", 0.003)):
            learner = trained(world, strategy, precision)
            weights = weights_of(learner)
            assert all(value.dtype == torch.float32 for value in weights.values())
            assert ("scale" in learner.state_dict()["scale"]) == (precision == "fp16"), "bf16 has no scale"
            begun = made(Net).state_dict()
            moved = torch.cat([(exact[n] - begun[n]).flatten() for n in exact])
            apart = torch.cat([(weights[n] - exact[n]).flatten() for n in exact])
            assert 0 < apart.norm() < tolerance * moved.norm(), (precision, apart.norm() / moved.norm())


def tiny_updates_add_up(world: World, strategy: str) -> None:
    """Each update is far below what bf16 could add to a weight near 1."""
    with default_dtype(torch.float32):
        module = made(Net)
        nn.init.ones_(module.first.weight)
        tiny = 1e-6
        learner = learner_of(module, world, strategy, mixed_precision="bf16", rate=lambda update: tiny)
        before = weights_of(learner)["first.weight"]
        micro_batches = feed_of(Points(8), world, 8, 2, steps=1)[0]
        for _ in range(20):
            learner.update(micro_batches, error)
        moved = (weights_of(learner)["first.weight"] - before).abs()
        assert tiny < 2.0**-9
        assert float(moved.max()) > 10 * tiny


def every_use_has_weights_in_bf16_and_inputs_as_they_are(world: World, strategy: str) -> None:
    with default_dtype(torch.float32):
        learner = learner_of(made(Net), world, strategy, mixed_precision="bf16")
        seen: list[tuple[torch.dtype, torch.dtype]] = []
        learner.module.first.register_forward_pre_hook(
            lambda part, inputs: seen.append((part.weight.dtype, inputs[0].dtype))
        )
        micro_batches = feed_of(Points(8), world, 8, 4, steps=1)[0]
        learner.update(micro_batches, error)
        with learner.inference() as module:
            error(module, micro_batches.batches[0])
        assert {weight.dtype for weight in learner.module.parameters()} == {torch.float32}
        with learner.held_constant() as module:
            error(module, micro_batches.batches[0])
        assert len(seen) > 2
        assert set(seen) == {(torch.bfloat16, torch.float32)}


def held_constant_in_bf16_leaves_no_gradient(world: World, strategy: str) -> None:
    with default_dtype(torch.float32):
        learner = learner_of(made(Net), world, strategy, mixed_precision="bf16")
        x = torch.ones(3, 4, requires_grad=True)
        with learner.held_constant() as module:
            output = module(x, torch.zeros(3, dtype=torch.int64))
        output.float().square().sum().backward()
        assert x.grad is not None and x.grad.abs().sum() > 0
        assert all(weight.grad is None for weight in learner.parameters())


@in_worlds(NOT_SHARDED)  # sharded weights are gathered for one use at a time
def held_constant_inside_of_the_own_loss(world: World, strategy: str) -> None:
    def adversarial(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        with learner.held_constant() as constant:
            apart = constant(batch["x"], batch["tokens"]) - batch["y"]
        assert not apart.requires_grad
        return error(module, batch)

    with default_dtype(torch.float32):
        learner = learner_of(made(Net), world, strategy, mixed_precision="bf16")
        learner.update(feed_of(Points(8), world, 8, 4, steps=1)[0], adversarial)
        plain = learner_of(made(Net), world, strategy, mixed_precision="bf16")
        plain.update(feed_of(Points(8), world, 8, 4, steps=1)[0], error)
        close(weights_of(learner), weights_of(plain), tolerance=0)


class BatchNormed(Net):
    """With a norm that has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)


def a_batch_norm_trains_in_float32(world: World, strategy: str) -> None:
    with default_dtype(torch.float32):
        learner = learner_of(made(BatchNormed), world, strategy, mixed_precision="bf16")
        seen: list[torch.dtype] = []
        learner.module.norm.register_forward_pre_hook(lambda part, inputs: seen.append(part.weight.dtype))
        before = weights_of(learner)["norm.weight"]
        learner.update(feed_of(Points(8), world, 8, 4, steps=1)[0], error)
        learner.check_finite()
        assert set(seen) == {torch.float32}
        assert not torch.equal(weights_of(learner)["norm.weight"], before)


@in_worlds(NOT_SHARDED)  # the loss's own arithmetic is the same in a sharded one
def rows_in_bf16_are_summed_in_float32(world: World, strategy: str) -> None:
    with default_dtype(torch.float32):
        learner = learner_of(made(Net), world, strategy, mixed_precision="bf16")
        kept: list[Tensor] = []

        def scores(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
            rows = module(batch["x"], batch["tokens"])[:, 0] + 3
            assert rows.dtype == torch.bfloat16
            kept.append(rows.detach().double())
            return {"score": rows}

        accumulator = MetricAccumulator(world)
        accumulator.add(learner.update(feed_of(Points(96), world, 96, 96, steps=1)[0], scores))
        sums = world.gather(float(kept[-1].sum()))
        assert accumulator.read()["score"] == pytest.approx(sum(sums) / 96, rel=1e-6)


def an_overflow_halves_the_scale(world: World, strategy: str) -> None:
    with default_dtype(torch.float32):
        learner = learner_of(made(Net), world, strategy, mixed_precision="fp16", max_bad_steps=2)
        assert learner._scale is not None
        learner._scale.scale.fill_(2.0**126)  # any gradient overflows
        feed, begun = feed_of(Points(32), world, 8, 2, steps=4), weights_of(learner)
        for step in range(4):
            learner.update(feed[step], error)
        learner.check_finite()  # not a failure: what is at fault is the scale, and it still has far to fall
        assert float(learner._scale.scale) == 2.0**122
        close(weights_of(learner), begun, tolerance=0)

        again = learner_of(made(Net), world, strategy, mixed_precision="fp16")
        again.load_state_dict(learner.state_dict())
        assert again._scale is not None
        assert float(again._scale.scale) == 2.0**122
        again._scale.scale.fill_(2.0**10)
        again.update(feed[0], error)
        assert any(not torch.equal(value, begun[name]) for name, value in weights_of(again).items())
        assert float(again._scale.scale) == 2.0**10


def without_scale_to_lose_it_fails(world: World, strategy: str) -> None:
    with default_dtype(torch.float32):
        rows = Points(32)
        rows.x[:] = float("nan")
        learner = learner_of(made(Net), world, strategy, mixed_precision="fp16", max_bad_steps=2)
        assert learner._scale is not None
        learner._scale.scale.fill_(4.0)
        feed = feed_of(rows, world, 8, 2, steps=4)
        for step in range(4):  # 4 and 2 are blamed on the scale, 1 and 1/2 are not
            learner.update(feed[step], error)
        with pytest.raises(RunFailed, match="not finite for 2 steps in a row, the last at step 4"):
            learner.check_finite()


CASES: list[Case] = [
    low_precision_follows_float32,
    tiny_updates_add_up,
    every_use_has_weights_in_bf16_and_inputs_as_they_are,
    held_constant_in_bf16_leaves_no_gradient,
    held_constant_inside_of_the_own_loss,
    a_batch_norm_trains_in_float32,
    rows_in_bf16_are_summed_in_float32,
    an_overflow_halves_the_scale,
    without_scale_to_lose_it_fails,
]

test_on_ranks = on_ranks(CASES, UP_TO_2)


def test_the_loss_scale_doubles_after_enough_good_steps() -> None:
    scale = LossScale(torch.device("cpu"), start=8.0, growth_interval=3)
    good, bad = torch.tensor(0.0), torch.tensor(1.0)
    seen = []
    for outcome in (good, good, bad, good, good, good, good, good, bad, bad, good):
        scale.update(outcome)
        seen.append(float(scale.scale))
    assert seen == [8, 8, 4, 4, 4, 8, 8, 8, 4, 2, 2]


def test_the_loss_scale_goes_on_from_its_state() -> None:
    one, good = LossScale(torch.device("cpu"), start=8.0, growth_interval=3), torch.tensor(0.0)
    one.update(good)
    one.update(good)
    saved = {name: value.clone() for name, value in one.state_dict().items()}
    other = LossScale(torch.device("cpu"), growth_interval=3)
    other.load_state_dict(saved)
    other.update(good)
    assert float(other.scale) == 16
    assert float(one.scale) == 8, "the state is copied, not shared"
