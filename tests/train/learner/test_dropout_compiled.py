"""Keyed dropout under torch.compile: the same masks, compiled once, and the same refusals."""

import pytest
import torch
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.data.loading import Batch
from samestep.train.learner.dropout import keyed_dropout
from samestep.world.world import World
from toys import CountingCompiler, Points, close, default_dtype, feed_of, learner_of, made, weights_of


def network() -> nn.Module:
    layers = nn.Linear(4, 6), nn.Dropout(0.3), nn.Unflatten(1, (2, 3)), nn.Dropout1d(0.4), nn.Flatten(), nn.Linear(6, 2)
    return keyed_dropout(nn.Sequential(*layers))


def error(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}


def trained(module: nn.Module) -> dict[str, Tensor]:
    """The weights after six steps of two updates over three epochs."""
    learner = learner_of(module, World.single(), "lone")
    feed = feed_of(Points(16), World.single(), 8, 4, steps=6)
    for step in range(6):
        micro_batches = feed[step]
        for _ in range(2):
            learner.update(micro_batches, error)
    assert learner.loss_calls.rank_dependence == []
    return weights_of(learner)


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    torch._dynamo.reset()


def test_masks_are_those_of_the_uncompiled_network_and_no_step_compiles_again() -> None:
    with default_dtype(torch.float64):
        module, backend = made(network), CountingCompiler()
        module.compile(backend=backend, fullgraph=True)
        close(trained(module), trained(made(network)), tolerance=0)
    assert backend.compiled == 1


def test_training_mode_outside_of_an_update_is_refused() -> None:
    with default_dtype(torch.float64):
        module = made(network)
        module.compile(backend=CountingCompiler())
        trained(module)
        with pytest.raises(UserError, match="dropout '1' is used in training mode outside of its learner's update"):
            module(torch.ones(4, 4))
