"""A GAN on eight blobs in a circle, with two updates of the judge a step: samestep train examples/gan.py"""

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Config, Metrics, Recipe, Stage, Tick, evaluate, noise

ANGLES = torch.arange(8) * torch.pi / 4
CENTRES = torch.stack((ANGLES.cos(), ANGLES.sin()), 1)
REAL, FAKE = noise.purpose("real"), noise.purpose("fake")
softplus = nn.functional.softplus


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


def normal(purpose: int, batch: Batch, columns: int) -> Tensor:
    epoch, index = batch["ids"].unbind(1)  # a function of the sample: the same on any number of ranks
    return noise.normal(purpose, epoch[:, None], index[:, None], torch.arange(columns, device=index.device))


class Gan:
    def __init__(self, bench: Bench) -> None:
        rows = [{"centre": CENTRES[index % 8]} for index in range(4000)]
        self.feed, self.more = bench.feed(rows), bench.feed(rows)  # the first one fixes how many steps there are
        self.length, self.validation = self.feed.length, bench.evaluation_feed(rows[:400])
        self.generator = bench.learner(mlp(4, 2), name="generator")
        self.judge = bench.learner(mlp(2, 1), name="judge", rate=lambda step: 2e-3)
        self.state = {"generator": self.generator, "judge": self.judge}  # what must survive a kill

    def step(self, tick: Tick) -> Metrics:
        for number in range(2):  # a feed may be asked for any step
            judged = self.judge.update(self.more[2 * tick.step + number], self.judge_loss)
        return {**judged, **self.generator.update(self.feed[tick.step], self.generator_loss)}

    def judge_loss(self, judge: nn.Module, batch: Batch) -> dict[str, Tensor]:
        with self.generator.inference() as generator:
            fake = generator(normal(FAKE, batch, 4))
        real = batch["centre"] + 0.05 * normal(REAL, batch, 2)
        return {"told_apart": (softplus(-judge(real)) + softplus(judge(fake)))[:, 0]}

    def generator_loss(self, generator: nn.Module, batch: Batch) -> dict[str, Tensor]:
        with self.judge.held_constant() as judge:  # gradients flow through it, its weights get none
            return {"caught": softplus(-judge(generator(normal(FAKE, batch, 4))))[:, 0]}

    def validate(self, tick: Tick) -> dict[str, float]:
        return {"val/near": evaluate(self.generator, self.validation, near)["near"]}


def near(generator: nn.Module, batch: Batch) -> dict[str, Tensor]:
    points = generator(normal(FAKE, batch, 4))
    return {"near": (torch.cdist(points, CENTRES.to(points)).amin(1) < 0.2).to(points.dtype)}


stages = [Stage("gan", Gan, validate=Gan.validate, best=("val/near", "max"))]
small = {"global_batch_size": 7, "batch_size": 3, "max_steps": 5}
default = {"global_batch_size": 64, "batch_size": 64, "epochs": 20, "beta1": 0.5, "weight_decay": 0.0}
recipe = Recipe(config=Config, stages=lambda config: stages, presets={"default": default, "verify": small})
