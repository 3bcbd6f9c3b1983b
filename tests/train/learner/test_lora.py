"""Adapters: trained as by hand at any split, alone in the state, and switched off for a reference."""

from collections.abc import Mapping
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from adapter_toys import LORA, bench_of
from samestep.data.loading import Batch
from samestep.parallel.wrap import full_tensor
from samestep.train.learner.content_hash import content_hash
from samestep.train.learner.ema import Average
from samestep.train.learner.lora import plain_name
from samestep.train.logging.metrics import MetricAccumulator
from samestep.train.session.banner import banner_lines
from samestep.world.world import World
from toys import ByHand, Case, Net, Points, close, default_dtype, error, feed_of, made, on_ranks, rate, weights_of

pytest.importorskip("peft")


def first_adapters(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """What every learner called `model` begins with at this seed, as the names are without peft."""
    learner = bench_of(World.single(), "ddp").learner(made(Net), rate=rate, lora=LORA)
    return {plain_name(name): tensor.to(dtype) for name, tensor in weights_of(learner).items()}


class WithAdapters(nn.Module):
    """The same by hand: peft is not used."""

    def __init__(self, base: nn.Module, adapters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.adapters = nn.ParameterDict({n.replace(".", "/"): nn.Parameter(t.clone()) for n, t in adapters.items()})

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        net = self.base
        assert isinstance(net, Net)
        hidden = torch.tanh(net.first(x) + self._adapted("first", x)) + net.table(tokens)
        hidden = net.norm(hidden)
        return net.last(hidden) + self._adapted("last", hidden)

    def _adapted(self, layer: str, x: Tensor) -> Tensor:
        down, up = self.adapters[f"{layer}/lora_A/weight"], self.adapters[f"{layer}/lora_B/weight"]
        return x @ down.T @ up.T * 3.0

    def weights(self) -> dict[str, Tensor]:
        return {name.replace("/", "."): tensor.detach() for name, tensor in self.adapters.items()}


def updates_are_those_by_hand(world: World, strategy: str) -> None:
    """With the base in use as a reference, before and after the network that is trained."""
    bench = bench_of(world, strategy)
    learner = bench.learner(made(Net), rate=rate, lora=LORA)
    average = Average(learner, 0.5)

    def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        inputs = batch["x"], batch["tokens"]
        with learner.adapters_off() as reference:
            before = reference(*inputs)
            assert not before.requires_grad
            assert not any(part.training for part in reference.modules())
        now = module(*inputs)
        assert module.training
        with learner.adapters_off() as reference:
            assert torch.equal(reference(*inputs), before)
        torch.testing.assert_close(before, made(Net)(*inputs).detach(), rtol=1e-12, atol=1e-12)
        return {"error": (now - batch["y"]).square().sum(1) + (now - before).square().sum(1)}

    points = Points(13)
    feed = feed_of(points, world, 5, 2, 4)
    hand = WithAdapters(made(Net), first_adapters())
    by_hand = ByHand(hand.adapters, list(hand.adapters))
    for step in range(4):
        bench.progress.step = step
        learner.update(feed[step], loss)
        average.update()
        rows = torch.as_tensor([index for _, index in feed.order.ids(step)])
        x, tokens, y = points.x[rows], points.tokens[rows], points.y[rows]
        now, before = hand(x, tokens), made(Net)(x, tokens).detach()
        by_hand.update(((now - y).square().sum(1) + (now - before).square().sum(1)).mean(), rate(step))
    close({plain_name(name): tensor for name, tensor in weights_of(learner).items()}, hand.weights())
    assert sorted(average.state_dict()["model"]) == sorted(learner.weights())
    with learner.inference() as module:
        base = {plain_name(n): full_tensor(p) for n, p in module.named_parameters() if not p.requires_grad}
    assert all(torch.equal(tensor, made(Net).state_dict()[name]) for name, tensor in base.items())


def only_adapters_are_saved_and_the_base_has_one_hash(world: World, strategy: str) -> None:
    bench = bench_of(world, strategy)
    learner = bench.learner(made(Net), rate=rate, lora=LORA)
    names = [f"{layer}.lora_{matrix}.default.weight" for layer in ("first", "last") for matrix in "AB"]
    assert sorted(learner.weights()) == sorted(learner.state_dict()["model"]) == names
    assert sorted(learner.weights(full=True)) == (names if world.is_main else []) or strategy != "fsdp"
    assert {name.split("/")[0] for name in learner.state_dict()["optimizer"]} <= {
        f"state.{name}.{part}" for name in names for part in ("step", "exp_avg", "exp_avg_sq")
    }
    assert bench.frozen_networks.hashes == {"base/model": content_hash(dict(made(Net).named_parameters()))}
    trained = 2 * (4 + 5) + 2 * (5 + 2)
    recipe = type("Recipe", (), {"describe": None})()
    assert banner_lines(recipe, bench, 1, "")["parameters"] == f"{trained} trained of {trained + 72}"


def a_base_keeps_its_type(world: World, strategy: str) -> None:
    """In bfloat16 beside float32, and the loss falls as it does with all of it in float32."""
    curves = {}
    for base in (torch.bfloat16, torch.float32):
        with default_dtype(torch.float32):
            bench = bench_of(world, strategy, "float32")
            learner = bench.learner(made(Net).to(base), rate=lambda _: 0.05, lora=LORA)
            assert {p.dtype for p in learner.parameters() if not p.requires_grad} == {base}
            assert {tensor.dtype for tensor in learner.weights().values()} == {torch.float32}
            feed, total = feed_of(Points(8), world, 8, 3, 20), MetricAccumulator(world)
            curves[base] = []
            for step in range(20):
                total.add(learner.update(feed[step], partial(rounded_error, base)))
                curves[base].append(total.read()["loss"])
    mine, wanted = (torch.tensor(curve) for curve in curves.values())
    assert mine[-1] < 0.7 * mine[0]
    torch.testing.assert_close(mine, wanted, rtol=0.03, atol=0.01)


def rounded_error(dtype: torch.dtype, module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    off = module(batch["x"].to(dtype), batch["tokens"]).float() - batch["y"].float()
    return {"error": off.square().sum(1)}


def adapters_merge_into_the_base(world: World, strategy: str) -> None:
    learner = bench_of(world, strategy).learner(made(Net), rate=rate, lora=LORA)
    feed = feed_of(Points(13), world, 5, 2, 3)
    for step in range(3):
        learner.update(feed[step], error)
    points = Points(13)
    with learner.inference() as module:
        wanted = module(points.x, points.tokens)
    merged = learner.merged_weights()
    if world.is_main:
        plain = made(Net, 5)
        plain.load_state_dict(merged)
        torch.testing.assert_close(plain(points.x, points.tokens), wanted, rtol=1e-12, atol=1e-12)
        assert not torch.equal(merged["first.weight"], made(Net).state_dict()["first.weight"])
    else:
        assert merged == {}


CASES: list[Case] = [
    updates_are_those_by_hand,
    only_adapters_are_saved_and_the_base_has_one_hash,
    a_base_keeps_its_type,
    adapters_merge_into_the_base,
]

test_on_ranks = on_ranks(CASES)
