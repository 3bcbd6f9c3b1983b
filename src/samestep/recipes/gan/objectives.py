"""What the generator learns from: the judge's rewards for what it wrote, or human texts preferred to its own.

A loss here is sums per row, as a learner takes them: of each term over the row's tokens, or one number a row.

    reinforce   - advantage x log-probability
    ppo, grpo   - the smaller of ratio x advantage and clipped ratio x advantage, by token; they differ in what a
                reward is compared with: all of the global batch, or the other completions of the same prompt
    spin        - log sigmoid(beta x (log-ratio of the human text - log-ratio of the own text)), where a
                log-ratio is the log-probability now minus that when the text was written
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from samestep import UserError, policy
from samestep.core.config.bounds import Count, NotNegative, Positive
from samestep.core.config.checked import CheckedConfig

Kind = Literal["reinforce", "ppo", "grpo", "spin"]


@dataclass(frozen=True)
class Objective(CheckedConfig):
    """How the generator is trained."""

    kind: Kind = "ppo"
    """reinforce, ppo, grpo (groups of completions per prompt), or spin (self-play preference, without rewards)."""
    clip_eps: Positive = 0.2
    """ppo and grpo: how far a ratio may move from 1 before its gradient ends."""
    entropy_coef: NotNegative = 0.01
    """Bonus on the entropy of the distribution that each token was sampled from."""
    kl_coef: NotNegative = 0.0
    """Penalty on the divergence from the generator as it began; 0: no reference is kept."""
    inner_epochs: Count = 1
    """Times that one rollout is learned from."""
    parts: Count = 1
    """Updates per inner epoch, each on its part of the rollout."""
    group_size: Count = 1
    """Completions per prompt; grpo needs at least 2."""
    spin_beta: Positive = 0.1
    """spin: how sharply a preference is learned."""

    def __post_init__(self) -> None:
        if self.kind == "grpo" and self.group_size < 2:
            raise UserError("Set objective.group_size to 2 or more; grpo compares the completions of one prompt.")
        if self.kind == "reinforce" and self.inner_epochs * self.parts > 1:
            raise UserError(
                "Set objective.kind=ppo, or leave objective.inner_epochs and objective.parts at 1: reinforce has no "
                "ratio, so its second update on a rollout would be of the wrong policy."
            )


def policy_terms(objective: Objective, now: Tensor, entropy: Tensor, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sums per row of the terms of a policy gradient.

    `now` and `entropy` are [rows, tokens], of the tokens in `rows["written"]`; `rows` also has their `is_written`,
    the log-probabilities `before` when they were sampled, `advantage` [rows], and `reference` if there is a penalty.
    """
    clipped = policy.clipped_objective(now, rows["before"], rows["advantage"], objective.clip_eps)
    larger = policy.reinforce_objective(now, rows["advantage"]) if objective.kind == "reinforce" else clipped.objective
    terms = {"policy": -larger, "entropy": entropy, "clipped": clipped.is_clipped.to(now.dtype)}
    if "reference" in rows:
        terms["kl"] = policy.kl_k3(now, rows["reference"])
    return {name: torch.where(rows["is_written"], values, 0.0).sum(1) for name, values in terms.items()}


def policy_mix(objective: Objective) -> dict[str, float]:
    """What each term of a policy gradient counts; `clipped` is only logged."""
    mix = {"policy": 1.0}
    if objective.entropy_coef:
        mix["entropy"] = -objective.entropy_coef
    if objective.kl_coef:
        mix["kl"] = objective.kl_coef
    return mix


def spin_terms(objective: Objective, human: Tensor, own: Tensor, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One preference a row. `human` and `own` are log-probabilities of whole texts [rows] now; `rows` has those from
    before, `human_before` and `own_before`."""
    margin = (human - rows["human_before"]) - (own - rows["own_before"])
    return {"preference": -logsigmoid(objective.spin_beta * margin), "preferred": (margin > 0).to(human.dtype)}
