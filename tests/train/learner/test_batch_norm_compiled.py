"""Global batch norm under torch.compile: computed as it is, and rows that are only repeated count for nothing."""

import torch
from torch import Tensor, nn

from samestep.data.loading import Batch
from samestep.parallel.compiling import LossCompiler
from samestep.train.learner.batch_norm import global_batch_norm
from samestep.train.learner.preparation import Choices
from samestep.world.world import World
from toys import CountingCompiler, Points, close, default_dtype, feed_of, learner_of, made, weights_of


def network() -> nn.Module:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 2))

    return global_batch_norm(made(build))


def error(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}


def trained(choices: Choices) -> dict[str, Tensor]:
    learner = learner_of(network(), World.single(), "lone", choices=choices)
    feed = feed_of(Points(23), World.single(), 9, 100, steps=6)  # of 9, 9 and 5 rows
    for step in range(6):
        learner.update(feed[step], error)
    return weights_of(learner)


def test_it_is_the_same_run() -> None:
    compiler = CountingCompiler()
    with default_dtype(torch.float64):
        plain = trained(Choices())
        close(trained(Choices(compile=True, compiler=lambda: LossCompiler(compiler))), plain)
    assert compiler.compiled, "what is around the batch norm"
