"""No bug: a loss with a metric beside it; then a generator against the judge that an earlier stage trained.

The judge is updated twice a step from data of another length, and the generator's loss holds its weights constant.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from planted.parts import VERIFY, Batch, Small, net, points
from samestep import Bench, Fit, Recipe, Stage, Tick
from samestep.train.logging.metrics import Metrics


def judged(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    off = module(batch["x"]) - batch["y"]
    return {"error": off.square().sum(1), "close": (off.abs() < 0.1).double().sum(1)}


def train_judge(bench: Bench) -> Fit:
    judge = bench.learner(net())
    return Fit(judge, bench.feed(points(40)), judged, mix={"error": 1.0}, validation=bench.evaluation_feed(points(11)))


class Duel:
    """The generator moves points to where the judge gives less."""

    def __init__(self, bench: Bench) -> None:
        self.feed, self.more = bench.feed(points(40)), bench.feed(points(17))
        self.length = self.feed.length
        self.judge = bench.learner(net())
        self.generator = bench.learner(net(), name="generator", rate=lambda step: 0.01)
        self.state = {"model": self.judge, "generator": self.generator}

    def step(self, tick: Tick) -> Metrics:
        metrics = self.generator.update(self.feed[tick.step], self.fooled)
        for number in range(2):
            more = self.judge.update(self.more[2 * tick.step + number], judged, mix={"error": 1.0})
        return {**metrics, **more}

    def fooled(self, module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        moved = batch["x"] + module(batch["x"])
        with self.judge.held_constant() as judge:
            return {"fool": judge(moved)[:, 0]}


recipe = Recipe(
    config=Small,
    stages=lambda config: [
        Stage("judge", train_judge, validate=Fit.validate, best=("val/error", "min")),
        Stage("duel", Duel, start="judge:best"),
    ],
    presets={"verify": {**VERIFY, "max_steps": 6}},
)
