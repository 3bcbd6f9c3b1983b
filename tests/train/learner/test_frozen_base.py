"""A network with a frozen part of its own: that is in no checkpoint, recorded by hash, and compared at every resume."""

import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import samestep
from adapter_toys import bench_of, launch_recipe, new_folder
from samestep import Bench, Config, Fit, Recipe, Stage
from samestep.checkpoint.loading import read_tensors
from samestep.core.errors import UserError
from samestep.data.loading import Batch
from samestep.parallel.wrap import full_tensor
from samestep.train.learner.content_hash import content_hash
from samestep.world.world import World
from toys import UP_TO_2, ByHand, Case, Net, Points, close, default_dtype, feed_of, made, on_ranks, rate, weights_of

TRAINED = ["before.bias", "before.weight", "mean"]


class Around(nn.Module):
    """A trained layer before a network that is frozen, which gradients pass through; and a buffer."""

    has_frozen_base = True

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.before = made(lambda: nn.Linear(4, 4))
        self.register_buffer("mean", torch.full((2,), 0.25))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        own = self.before(x)
        return self.base(own.to(self.base.last.weight.dtype), tokens).to(own.dtype) - self.mean


def error(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    x, y = (batch[name].to(torch.get_default_dtype()) for name in ("x", "y"))
    return {"error": (module(x, batch["tokens"]) - y).square().sum(1)}


def updates_are_those_by_hand(world: World, strategy: str) -> None:
    learner = bench_of(world, strategy).learner(Around(made(Net)), rate=rate)
    points, feed = Points(13), feed_of(Points(13), world, 5, 2, 4)
    hand = Around(made(Net))
    by_hand = ByHand(hand.before, ["weight"])
    for step in range(4):
        learner._loop_step = lambda step=step: step
        learner.update(feed[step], error)
        rows = torch.as_tensor([index for _, index in feed.order.ids(step)])
        wanted = (hand(points.x[rows], points.tokens[rows]) - points.y[rows]).square().sum(1).mean()
        by_hand.update(wanted, rate(step))
    close(weights_of(learner), {name: hand.state_dict()[name] for name in TRAINED})
    with learner.inference() as module:
        base = {name: full_tensor(tensor) for name, tensor in module.base.state_dict().items()}
    assert all(torch.equal(tensor, made(Net).state_dict()[name]) for name, tensor in base.items())


def the_base_is_not_saved_and_has_one_hash(world: World, strategy: str) -> None:
    bench = bench_of(world, strategy)
    learner = bench.learner(Around(made(Net)), rate=rate)
    assert sorted(learner.weights()) == sorted(learner.state_dict()["model"]) == TRAINED
    assert sorted(learner.saved_parameters()) == TRAINED[:2]
    named = {f"base.{name}": tensor for name, tensor in made(Net).named_parameters()}
    assert bench.frozen_networks.hashes == {"base/model": content_hash(named)}
    learner.load_state_dict(learner.state_dict())


def a_base_keeps_its_type(world: World, strategy: str) -> None:
    with default_dtype(torch.float32):
        bench = bench_of(world, strategy, "float32")
        learner = bench.learner(Around(made(Net).to(torch.bfloat16)), rate=lambda _: 0.05)
        assert {p.dtype for p in learner.parameters() if not p.requires_grad} == {torch.bfloat16}
        assert {tensor.dtype for tensor in learner.weights().values()} == {torch.float32}
        feed = feed_of(Points(8), world, 8, 3, 12)
        before = weights_of(learner)
        for step in range(12):
            learner.update(feed[step], error)
    assert not torch.equal(before["before.weight"], weights_of(learner)["before.weight"])


def another_base_is_refused_at_a_resume(world: World, strategy: str) -> None:
    folder = new_folder(world)
    bench_of(world, strategy, folder=folder).learner(Around(made(Net)), rate=rate)
    bench_of(world, strategy, folder=folder, resumed=True).learner(Around(made(Net)), rate=rate)
    with pytest.raises(UserError, match="the base of learner 'model' is not the one that this run was started with"):
        bench_of(world, strategy, folder=folder, resumed=True).learner(Around(made(Net, 7)), rate=rate)


CASES: list[Case] = [
    updates_are_those_by_hand,
    the_base_is_not_saved_and_has_one_hash,
    a_base_keeps_its_type,
    another_base_is_refused_at_a_resume,
]

test_on_ranks = on_ranks(CASES, UP_TO_2)


def test_mixed_precision_leaves_a_base_in_bfloat16_as_it_is() -> None:
    from samestep.parallel.precision import cast_weights

    module = Around(made(Net).to(torch.bfloat16))
    weight = module.base.last.weight
    with cast_weights(module, torch.bfloat16):
        assert module.base.last.weight is weight
        assert module.before.weight.dtype == torch.bfloat16
    assert module.before.weight.dtype == torch.get_default_dtype()


def test_a_function_and_a_frozen_copy_are_refused(tmp_path: Path) -> None:
    bench = bench_of(World.single(), "ddp")
    with pytest.raises(UserError, match=r"give bench\.learner the network itself, not a function"):
        bench.learner(lambda: Around(made(Net)), rate=rate)
    learner = bench.learner(Around(made(Net)), rate=rate)
    with pytest.raises(UserError, match="has a frozen base of its own, so its network cannot be copied"):
        bench.frozen(learner)
    weights = tmp_path / "around.safetensors"
    save_file({name: tensor.clone() for name, tensor in Around(made(Net)).state_dict().items()}, weights)
    with pytest.raises(UserError, match="which no file brings back"):
        bench.frozen(Around(made(Net)), name="other", source=weights)


@dataclass(frozen=True)
class Settings(Config):
    """Which base."""

    base_seed: int = 1


def build(bench: Bench) -> Fit:
    learner = bench.learner(Around(made(lambda: Net().float(), bench.config.base_seed)).float())
    return Fit(learner, bench.feed(Points(24)), error)


recipe = Recipe(Settings, lambda config: [Stage("fit", build), Stage("more", build, start="fit")])
launch = partial(launch_recipe, __name__)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was stopped, and one that was resumed and finished."""
    folder = tmp_path_factory.mktemp("home")
    launch(folder, "stopped", 75, max_time="0s")
    shutil.copytree(folder / "stopped", folder / "run")
    launch(folder, "run")
    return folder


def test_a_run_is_resumed_loaded_and_begun_with(home: Path) -> None:
    checkpoint = home / "run/checkpoints/more/step_00000004"
    saved = read_tensors(checkpoint, "model/model")
    assert sorted(saved) == TRAINED
    loaded = samestep.load(home / "run").network
    assert isinstance(loaded, Around)
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in saved.items())
    assert torch.equal(loaded.base.last.weight, made(lambda: Net().float()).last.weight)
    assert not torch.equal(saved["before.weight"], samestep.load(home / "run", stage="fit").network.before.weight)
    launch(home, "next", init_from=str(home / "run"), max_steps=1, learning_rate=0.0)
    assert torch.equal(samestep.load(home / "next", stage="fit").network.before.weight, saved["before.weight"])


def test_another_base_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = launch(home, "other", 2, base_seed=5, init_from=str(home / "run"))
    assert "begins with weights that were trained on another base" in text
    original = made
    monkeypatch.setattr(sys.modules[__name__], "made", lambda make, seed=1: original(make, 5))
    with pytest.raises(UserError, match=r"the weights in .* were trained on another base than the recipe builds now"):
        _ = samestep.load(home / "run").network
