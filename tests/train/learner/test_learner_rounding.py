"""A scale of the gradients in the backward pass changes how they are rounded, and nothing else."""

import torch
from torch import Tensor, nn

from samestep.data.loading import Batch
from samestep.train.learner.learner import ROUNDING_SCALE
from samestep.world.world import World
from toys import Net, Points, default_dtype, feed_of, learner_of, made, weights_of


def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": (module(batch["x"], batch["tokens"]) - batch["y"]).square().sum(1)}


def coarse_loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": (module(batch["x"], batch["tokens"]).float() - batch["y"].float()).square().sum(1)}


def trained(loss: object, rounding_scale: float, coupled: bool = False) -> dict[str, Tensor]:
    """The weights after three updates."""
    with default_dtype(torch.float64):
        world, learner = World.single(), learner_of(made(Net), World.single(), "ddp", rounding_scale=rounding_scale)
        feed = feed_of(Points(40), world, batch=7, micro=3, steps=3)
        for step in range(3):
            if coupled:
                learner.update_coupled(feed[step], embed, couple)
            else:
                learner.update(feed[step], loss)  # type: ignore[arg-type]
        return weights_of(learner)


def embed(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"out": module(batch["x"], batch["tokens"]), "y": batch["y"]}


def couple(outputs: object, own: slice) -> dict[str, Tensor]:
    return {"error": (outputs["out"] - outputs["y"]).square().sum(1)[own]}  # type: ignore[index]


def farthest(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def test_in_float64_it_is_the_same_update_to_the_last_digits() -> None:
    assert farthest(trained(loss, 1.0), trained(loss, ROUNDING_SCALE)) < 1e-12
    assert farthest(trained(loss, 1.0, coupled=True), trained(loss, ROUNDING_SCALE, coupled=True)) < 1e-12


def test_what_computes_in_float32_shows() -> None:
    assert 1e-12 < farthest(trained(coarse_loss, 1.0), trained(coarse_loss, ROUNDING_SCALE)) < 1e-4
