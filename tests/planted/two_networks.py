"""No bug: an encoder whose average is kept, and a critic with tied weights and a buffer, under a key of its own.

Data is read before the critic is made, from a file if there is one; the encoder is made first. A stage without a
learner comes last. `samestep sample` and `samestep evaluate` work, with options of the recipe's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from planted.parts import VERIFY, Batch, Small, net, points
from samestep import Bench, Recipe, Stage, Tick, Trained, Verb, evaluate
from samestep.core.json_files import write_json
from samestep.train.learner.ema import Average
from samestep.train.logging.metrics import Metrics
from samestep.world.world import World


@dataclass(frozen=True)
class Two(Small):
    """Two networks."""

    width: int = 4
    """Width of the critic."""
    data: str | None = None
    """A file that must be there."""
    critic_from: str | None = None
    """Where the critic's first weights come from."""


class Critic(nn.Module):
    """One matrix used twice, and a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, width), nn.Linear(width, 1)
        self.there, self.back = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.back.weight = self.there.weight
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.back(torch.tanh(self.there(torch.tanh(self.first(x)))))))


class Both:
    """Fits both to one wave."""

    def __init__(self, bench: Bench) -> None:
        config: Two = bench.config
        self.encoder = bench.learner(net, name="encoder")
        if bench.world.is_main:
            write_json(bench.artifact("made.json"), {"width": config.width})
        if config.data:
            Path(config.data).read_text()
        self.feed = bench.feed(points(40))
        self.validation = bench.evaluation_feed(points(11))
        make = lambda: Critic(config.width)  # noqa: E731
        self.critic = bench.learner(make, name="critic", init_from=config.critic_from)
        self.average = Average(self.encoder, decay=0.5)
        self.length = self.feed.length
        self.state = {"encoder": self.encoder, "judge": self.critic, "average": self.average}

    def step(self, tick: Tick) -> Metrics:
        metrics = self.encoder.update(self.feed[tick.step], loss)
        self.average.update()
        with self.critic.inference() as critic:
            critic.seen += 1
        return {**metrics, **self.critic.update(self.feed[tick.step], loss)}

    def validate(self, tick: Tick) -> Mapping[str, float]:
        return {"val/error": evaluate(self.critic, self.validation, loss, tick.step)["error"]}


class Dump:
    """A stage without a learner."""

    def __init__(self, bench: Bench) -> None:
        self.feed = bench.evaluation_feed(points(6), batch=3)
        self.length, self.state = self.feed.length, dict[str, Any]()

    def step(self, tick: Tick) -> Metrics:
        self.feed[tick.step]
        return {}


def loss(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    return {"error": (module(batch["x"].to(next(module.parameters()).dtype)) - batch["y"]).square().sum(1)}


@dataclass(frozen=True)
class Asked:
    """What to ask the critic."""

    at: float = 0.0
    """Where."""
    loud: bool = False
    """In capitals."""


def answer(trained: Trained, options: Asked, world: World) -> list[dict[str, Any]]:
    network = trained.network("critic", world.device, torch.float64)
    with torch.no_grad():
        value = float(network(torch.tensor([[options.at]], dtype=torch.float64)))
    text = f"critic of width {trained.config.width} says {value:.6f}"
    return [{"text": text.upper() if options.loud else text, "value": value}]


def measure(trained: Trained, options: Any, world: World) -> dict[str, Any]:
    return {"critic": {"width": trained.config.width}, "parameters": len(list(trained.network("encoder").parameters()))}


recipe = Recipe(
    config=Two,
    stages=lambda config: [
        Stage("both", Both, validate=Both.validate, best=("val/error", "max")),  # the first validation is the best
        Stage("dump", Dump),
    ],
    presets={"verify": VERIFY},
    sample=Verb(answer, Asked, aliases={"w": "width"}),
    evaluate=Verb(measure),
)
