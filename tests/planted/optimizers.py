"""No bug: a learner with the optimizer of the configuration and with groups, and two with optimizers of the recipe's
own, which make their state in the first step; one of them is updated twice a step."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from planted.parts import VERIFY, Batch, Small, net, points
from samestep import Bench, Group, Recipe, Schedule, Stage, Tick
from samestep.train.logging.metrics import Metrics


class Counted(torch.optim.Optimizer):
    """Signs of a running mean that begins as the first gradient; it counts in the state and in the groups, and keeps
    one number a row."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, {"lr": 0.0, "weight_decay": 0.0, "done": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["done"] += 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["mean"], state["count"] = parameter.grad.clone(), 0
                    state["rows"] = parameter.grad.flatten(1).square().sum(1) if parameter.ndim > 1 else None
                state["count"] += 1
                state["mean"].lerp_(parameter.grad, 1 / (1 + state["count"]))
                size = 1.0 if state["rows"] is None else (1 + state["rows"][:, None]).sqrt()
                scaled = state["mean"] / size
                parameter.sub_(group["lr"] * group["done"] ** -0.5 * torch.tanh(10 * scaled))


class Wave(nn.Module):
    """A hidden matrix for Muon, a head, and an embedding of the sign."""

    def __init__(self) -> None:
        super().__init__()
        self.sign = nn.Embedding(2, 5)
        self.inner = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 7, bias=False), nn.Tanh())
        self.head = nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        sign = self.sign((x[:, 0] > 0).long())
        return self.head(self.inner[3](self.inner[2](self.inner[1](self.inner[0](x)) + sign)))


class Both:
    """Two learners with different optimizers."""

    def __init__(self, bench: Bench) -> None:
        self.feed = bench.feed(points(40))
        self.length = self.feed.length
        self.wave = bench.learner(
            Wave(),
            rate=Schedule(0.03, warmup=2, kind="linear"),
            groups={
                "head.*": Group(rate=0.5, decay=0.2),
                "sign.*": Group(train_from=2),
                "*0.bias": Group(train_until=3),
            },
            clip=0.8,
            clip_value=0.4,
        )
        self.own = bench.learner(net(), name="own", optimizer=Counted, dtype="float32", clip=0)
        self.adagrad = bench.learner(
            net(), name="adagrad", optimizer=lambda params: torch.optim.Adagrad(params, lr_decay=0.1)
        )
        self.state = {"model": self.wave, "own": self.own, "adagrad": self.adagrad}

    def step(self, tick: Tick) -> Metrics:
        micros = self.feed[tick.step]
        metrics = {**self.wave.update(micros, loss), **self.own.update(micros, loss)}
        return {**metrics, **self.adagrad.update(micros, loss), **self.own.update(micros, loss)}


def loss(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    return {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}


recipe = Recipe(
    config=Small,
    stages=lambda config: [Stage("both", Both)],
    presets={
        "verify": {**VERIFY, "optimizer": "muon", "distributed": {"strategy": "fsdp"}},
        "verify-sgd": {**VERIFY, "optimizer": "sgd"},
    },
)
