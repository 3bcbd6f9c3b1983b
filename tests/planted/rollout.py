"""No bug: a policy that learns from its own samples, and a model of padded rows from two sources.

The policy draws several moves a prompt, normalises rewards over the global batch, and is updated twice on all of them
and then on their parts. Prompts are drawn by weight. The second stage pads its rows, in buckets of similar length.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from planted.parts import VERIFY, Batch, Small, points
from samestep import Bench, Bucketed, Fit, Mixed, Recipe, Stage, Tick, Weighted, keyed_dropout
from samestep.train.logging.metrics import Metrics

MOVES, COPIES = 5, 3


def policy() -> nn.Module:
    return keyed_dropout(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, MOVES)))


class Explore:
    """Policy gradient with clipped ratios."""

    def __init__(self, bench: Bench) -> None:
        prompts = points(23)
        self.feed = bench.feed(prompts, order=Weighted([1 + n % 4 for n in range(len(prompts))]))
        self.bench, self.length = bench, self.feed.length
        self.policy, self.draws = bench.learner(policy()), bench.draws("move")
        self.state = {"model": self.policy}

    def step(self, tick: Tick) -> Metrics:
        def play(batch: Batch) -> Mapping[str, Tensor]:
            self.bench.check_stop()
            with self.policy.inference() as module:
                logits = module(batch["x"])
            move = self.draws.pick(logits, step=tick.step, ids=batch["ids"], position=0)
            reward = -(move - 2 - batch["y"][:, 0]).square()
            return {"x": batch["x"], "move": move, "before": chosen(logits, move), "reward": reward}

        def count(batch: Batch) -> Mapping[str, Tensor]:
            return {"policy": 1 + batch["move"]}  # any weight that is only known now

        rollout = self.bench.produced(self.feed[tick.step], play, copies=COPIES, count=count)
        mean, variance = self.bench.moments(rollout, "reward")
        for batch in rollout.batches:
            batch["advantage"] = (batch["reward"] - mean) / math.sqrt(variance + 1e-8)
        for _ in range(2):
            metrics = self.policy.update(rollout, learned, mix={"policy": 1.0, "entropy": -0.01})
        for inner in range(2):
            for part in self.bench.split(rollout, 3, turn=inner):
                metrics = self.policy.update(part, learned, mix={"policy": 1.0 / (1 + tick.step)})
        return metrics


def chosen(logits: Tensor, move: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(1, move[:, None])[:, 0]


def learned(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    logits = module(batch["x"])
    ratio = (chosen(logits, batch["move"]) - batch["before"]).exp()
    clipped = torch.minimum(ratio * batch["advantage"], ratio.clamp(0.8, 1.2) * batch["advantage"])
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(1)
    return {"policy": -clipped * (1 + batch["move"]), "entropy": entropy}


def ragged(count: int, start: int) -> list[dict[str, Any]]:
    """Rows of one to nine tokens."""
    return [{"tokens": [1 + (start + n * k) % 6 for k in range(1 + (5 * n) % 9)]} for n in range(count)]


class Bag(nn.Module):
    """Predicts each token from those before it, summed up."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        held = self.table(tokens)
        return self.out(held.cumsum(1) - held)


def nll(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    losses = nn.functional.cross_entropy(module(batch["tokens"]).mT, batch["tokens"], reduction="none")
    return {"nll": torch.where(batch["tokens"] > 0, losses, 0.0).sum(1)}


def tokens(batch: Batch) -> Mapping[str, Tensor]:
    return {"nll": (batch["tokens"] > 0).sum(1)}


def read(bench: Bench) -> Fit:
    rows = Mixed([ragged(31, 0), ragged(12, 3)], weights=[3, 1])
    order = Bucketed([len(rows[n]["tokens"]) for n in range(len(rows))], chunk=2)
    feed = bench.feed(rows, order=order, count=tokens, pad={"tokens": 0})
    return Fit(bench.learner(Bag()), feed, nll, validation=bench.evaluation_feed(rows, count=tokens, pad={"tokens": 0}))


recipe = Recipe(
    config=Small,
    stages=lambda config: [Stage("explore", Explore), Stage("read", read, validate=Fit.validate)],
    presets={"verify": {**VERIFY, "max_steps": 4}},
)
