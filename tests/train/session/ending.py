"""A recipe that ends in a particular way: its best checkpoint is an early one, it stops early, and its hooks log.

The best error is the largest one, which is that of the first validation.
"""

import torch
from torch import Tensor, nn

from samestep import Bench, Config, Every, Fit, Recipe, Stage, Tick, samples
from samestep.train.logging.metrics import Metrics

Batch = dict[str, Tensor]


def points(count: int) -> list[Batch]:
    x = torch.linspace(-3, 3, count)[:, None]
    return [{"x": a, "y": b} for a, b in zip(x, x.sin())]


def loss(module: nn.Module, batch: Batch) -> Batch:
    return {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}


class Noted(Fit):
    """Logs a text in every step."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
        validation = bench.evaluation_feed(points(11))
        super().__init__(bench.learner(net), bench.feed(points(40)), loss, validation=validation)

    def step(self, tick: Tick) -> Metrics:
        self.bench.log_samples("step", "one more")
        return super().step(tick)


def hooks(task: Fit, bench: Bench) -> list[Every]:
    def log(tick: Tick) -> None:
        bench.log_samples("note", f"after step {tick.step + 1}: {sorted(bench.validation)}")
        bench.log_samples("square", samples.Image(torch.full((3, 4, 5), 0.5)))

    return [Every(2, log)]


def finish(task: Fit, bench: Bench) -> None:
    weights = task.learner.weights(full=True)
    bench.log_samples("end", "this is the end")
    if bench.world.is_main:
        path = bench.artifact("weights.pt")
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(weights, path)


recipe = Recipe(
    config=Config,
    stages=lambda config: [
        Stage("fit", Noted, validate=Fit.validate, best=("val/error", "max"), finish=finish, hooks=hooks)
    ],
    presets={
        "verify": {"max_steps": 8, "global_batch_size": 10, "batch_size": 3, "validate_every": 2, "learning_rate": 0.05}
    },
)
