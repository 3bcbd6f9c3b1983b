"""A recipe with a mistake in its loss, its network or its metrics, which `mistake` names."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samestep import Bench, Config, Fit, Metric, Metrics, Recipe, Stage, Tick
from train.session.ending import points

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Settings(Config):
    mistake: str = ""


class Net(nn.Module):
    def __init__(self, unused: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.more = nn.Linear(1, 1) if unused else None

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def loss_with(mistake: str) -> object:
    def loss(net: nn.Module, batch: Batch) -> Batch:
        out = net(batch["x"])
        values = (out - batch["y"]).square().sum(1)
        wrong = {
            "mean": values.mean().expand(len(values)),
            "broadcast": (out - batch["y"][:, 0]).square().mean(1),
            "detached": values.detach(),
            "integer": values.long(),
        }
        return {"error": wrong.get(mistake, values)}

    return loss


class Mistaken(Fit):
    def __init__(self, bench: Bench) -> None:
        self.mistake = bench.config.mistake
        net = Net(unused=self.mistake == "unused")
        super().__init__(bench.learner(net), bench.feed(points(40)), loss_with(self.mistake))

    def step(self, tick: Tick) -> Metrics:
        micro_batches = self.feed[tick.step]
        metrics = self.learner.update(micro_batches, self._loss)
        right = torch.zeros(())
        with self.learner.inference() as net:
            for number, batch in enumerate(micro_batches.batches):
                positive = net(batch["x"])[:, 0] > 0
                if self.mistake != "fillers":
                    live = batch["live"] if number % 2 else not micro_batches.is_filler(number)
                    positive = positive & live
                right = right + positive.sum()
        return {**metrics, "right": Metric(right, micro_batches.weight("rows")), "tau": Metric(0.5, same=True)}


recipe = Recipe(
    config=Settings,
    stages=lambda config: [Stage("fit", Mistaken)],
    presets={"verify": {"max_steps": 2, "global_batch_size": 10, "batch_size": 3}},
)
