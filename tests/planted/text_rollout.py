"""No bug: a language model that learns from the text it writes, by keyed sampling, a cache and clipped ratios."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from planted.parts import VERIFY, Batch, Small
from samestep import (
    Bench,
    CausalConfig,
    CausalTransformer,
    GenerationConfig,
    LocalGenerator,
    Recipe,
    Stage,
    Tick,
    completion_log_probs,
)
from samestep.train.logging.metrics import Metrics

WIDTH, END = 4, 0
SHAPE = CausalConfig(d_model=16, n_layers=2, n_heads=2, mlp_hidden_size=24, vocab_size=11, init_std=0.4, tied_head=True)
HOW = GenerationConfig(max_new_tokens=6, temperature=0.9, top_p=0.95, rows_at_once=5)


def prompts(count: int) -> list[dict[str, Tensor]]:
    """One to four tokens each, padded behind their end."""
    rows = [[1 + (3 * number + k) % 10 for k in range(1 + number % WIDTH)] for number in range(count)]
    return [{"prompt": torch.tensor(row + [0] * (WIDTH - len(row))), "length": torch.tensor(len(row))} for row in rows]


class Write:
    """Policy gradient with clipped ratios, two updates a rollout."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.feed = bench, bench.feed(prompts(23))
        self.length = self.feed.length
        self.policy = bench.learner(lambda: CausalTransformer(SHAPE))
        self.generator = LocalGenerator.of(bench, "write", HOW, eos=[END])
        self.state = {"model": self.policy}

    def step(self, tick: Tick) -> Metrics:
        def write(batch: Batch) -> Mapping[str, Tensor]:
            lengths = batch["length"].tolist()
            texts = [row[:length] for row, length in zip(batch["prompt"].tolist(), lengths)]
            with self.policy.inference() as network:
                written = self.generator(network, texts, batch["ids"], step=tick.step)
            reward = (written.tokens % 3 == 1).sum(1) - written.lengths.to(torch.float64) / 4
            return {
                "prompt": batch["prompt"],
                "is_prompt": torch.arange(WIDTH) < batch["length"][:, None],
                "written": written.tokens,
                "is_written": written.mask,
                "before": written.log_probs,
                "reward": reward,
            }

        def count(batch: Batch) -> Mapping[str, Tensor]:
            return {"policy": batch["is_written"].sum(1)}

        rollout = self.bench.produced(self.feed[tick.step], write, copies=3, count=count)
        mean, variance = self.bench.moments(rollout, "reward")
        for batch in rollout.batches:
            batch["advantage"] = (batch["reward"] - mean) / math.sqrt(variance + 1e-8)
        for _ in range(2):
            metrics = self.policy.update(rollout, learned, mix={"policy": 1.0, "entropy": -0.01})
        return metrics


def learned(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    found = completion_log_probs(
        network,
        batch["prompt"],
        batch["is_prompt"],
        batch["written"],
        batch["is_written"],
        temperature=HOW.temperature,
        entropy=True,
    )
    assert found.entropy is not None
    ratio, advantage = (found.log_probs - batch["before"]).exp(), batch["advantage"][:, None]
    clipped = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return {"policy": -torch.where(batch["is_written"], clipped, 0.0).sum(1), "entropy": found.entropy.sum(1)}


recipe = Recipe(
    config=Small, stages=lambda config: [Stage("write", Write)], presets={"verify": {**VERIFY, "max_steps": 4}}
)
