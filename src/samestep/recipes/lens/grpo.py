"""A last stage: the decoder learns from rewards (GRPO), which are higher the better an activation can be rebuilt.

In each step several explanations of each activation are drawn. One that is better than the others of its group becomes
likelier. The encoder goes on learning from the same explanations.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Metric, Metrics, Tick
from samestep.recipes.lens.network import relative_error
from samestep.recipes.lens.task import LensStage, trained_mix

STAGE = "grpo"
_EPS = 1e-6


class LensRewards(LensStage):
    """Decoder and encoder learn from drawn explanations."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._grpo = self.config.grpo

    def step(self, tick: Tick) -> Metrics:
        """Draw explanations, then learn from them."""
        rollout = self.bench.produced(self.feed[tick.step], self._draw, copies=self._grpo.group_size)
        mean, variance = self.bench.moments(rollout, "reward")
        metrics: Metrics = {}
        mix = trained_mix({"policy": 1.0, "mse": self._grpo.mse_weight, "entropy": -self._grpo.entropy_weight})
        for _ in range(self._grpo.inner_epochs):
            metrics = self.learner.update(rollout, self._loss, mix)
        reward = {"reward": Metric(mean, same=True), "reward_std": Metric(variance**0.5, same=True)}
        return {**metrics, **reward}

    def _draw(self, batch: Batch) -> Batch:
        """Explanations of the activations of a batch, without gradients; those of one activation follow each other."""
        self.bench.check_stop()
        with self.learner.inference() as network:
            activation = network(batch, "activation")["activation"]
            found = network({**batch, "activation": activation}, "explain")
        error = relative_error(activation, found["rebuilt"])
        given = {name: value for name, value in batch.items() if name not in ("ids", "live")}
        return {
            **given,
            "activation": activation,
            "written": found["tokens"],
            "before": found["log_probs"],
            "reward": -error,
            "advantage": advantages(-error, self._grpo.group_size),
        }

    def _loss(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        found = network(batch, "score")
        return {
            **policy_terms(found["log_probs"], batch["before"], batch["advantage"], self._grpo.clip_eps),
            "mse": found["error"],
            "entropy": found["entropy"].mean(1),
        }


def advantages(rewards: Tensor, group: int) -> Tensor:
    """How much better each explanation is than those of its group, in their standard deviations."""
    groups = rewards.view(-1, group)
    centred = groups - groups.mean(1, keepdim=True)
    return (centred / (groups.std(1, correction=0, keepdim=True) + _EPS)).flatten()


def policy_terms(log_probs: Tensor, before: Tensor, advantage: Tensor, clip: float) -> dict[str, Tensor]:
    """The clipped objective of each row [rows], from log-probabilities [rows, tokens]."""
    ratio = (log_probs - before).exp()
    bounded = ratio.clamp(1 - clip, 1 + clip)
    gain = torch.minimum(ratio * advantage[:, None], bounded * advantage[:, None])
    return {"policy": -gain.mean(1), "clipped": (ratio != bounded).to(ratio.dtype).mean(1).detach()}
