"""What a pair of sequences teaches: the preferred one should become likelier, against the reference, than the other.

    log-ratio  log-probability under the policy minus that under the reference (by scored token, if length-normalised)
    margin     log-ratio of the preferred sequence - log-ratio of the other
    dpo        - log sigmoid(beta x margin); with label smoothing e, a pair counts as turned around with probability e
               (conservative DPO)
    ipo        (margin - 1 / (2 beta))^2, by scored token: what the authors of IPO trained with, and TRL does
    ipo_sum    the same with log-ratios of whole sequences, so that it grows with the square of their length
    hinge      max(0, 1 - beta x margin)

All functions are of sums per row, as a learner takes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from samestep import UserError, policy
from samestep.core.config.bounds import Bounds, NotNegative, Positive
from samestep.core.config.checked import CheckedConfig

DPO, SFT, DIVERSITY = "dpo", "sft", "diversity"
"""The terms that can be trained: of pairs, of the preferred sequences alone, and of sampled sequences."""
SAMPLED = "sampled"
"""The sequences of a batch that `diversity` compares."""
_ROUNDING = 1e-6
"""Log-probabilities that differ by a smaller share than this are equal but for rounding."""


@dataclass(frozen=True)
class Objective(CheckedConfig):
    """How a policy is trained with pairs."""

    loss_type: Literal["dpo", "ipo", "ipo_sum", "hinge"] = "dpo"
    """dpo, hinge, ipo (log-ratios are means over tokens) or ipo_sum (they are sums)."""
    beta: Positive = 0.1
    """How closely the policy stays with the reference: the larger, the closer."""
    label_smoothing: Annotated[float, Bounds(least=0, below=0.5)] = 0.0
    """dpo: the share of pairs that are taken to be the wrong way around (conservative DPO)."""
    length_normalised: bool = False
    """Divide log-probabilities by the number of scored tokens or residues; ipo always does."""
    sft_coef: NotNegative = 0.0
    """Coefficient of the negative log-likelihood of the preferred sequences, per token or residue."""
    diversity_lambda: NotNegative = 0.0
    """protein: coefficient of how alike sampled sequences are; 0: none are sampled."""

    def __post_init__(self) -> None:
        """Refuse one loss under the name of the other."""
        super().__post_init__()
        if self.loss_type == "ipo_sum" and self.length_normalised:
            raise UserError("Set objective.loss_type=ipo, which is ipo_sum by token; or leave out length_normalised.")

    @property
    def is_by_token(self) -> bool:
        """Whether log-ratios are means over tokens or residues."""
        return self.length_normalised or self.loss_type == "ipo"

    @property
    def mix(self) -> dict[str, float]:
        """What each trained term counts; all others are only logged."""
        mix = {DPO: 1.0, SFT: self.sft_coef, DIVERSITY: self.diversity_lambda}
        return {name: coefficient for name, coefficient in mix.items() if coefficient}


class PairLogProbs(NamedTuple):
    """Log-probabilities of the two sequences of each row, summed over what is scored, [rows] in float64."""

    chosen: Tensor
    rejected: Tensor


@dataclass(frozen=True)
class PairScores:
    """What a policy says of the pairs of a batch."""

    log_probs: PairLogProbs
    chosen_size: Tensor
    """[rows]: how many tokens or residues were scored."""
    rejected_size: Tensor
    others: Mapping[str, Tensor] = field(default_factory=dict)
    """More sums per row, to log."""


def preference_loss(objective: Objective, margin: Tensor) -> Tensor:
    """The loss of each row, for the margins [rows]."""
    if objective.loss_type in ("ipo", "ipo_sum"):
        return (margin - 1 / (2 * objective.beta)).square()
    scaled = objective.beta * margin
    if objective.loss_type == "hinge":
        return torch.relu(1 - scaled)
    turned = objective.label_smoothing
    return -(1 - turned) * logsigmoid(scaled) - turned * logsigmoid(-scaled)


def first_loss(objective: Objective) -> float:
    """The loss of a policy that is still its reference: ln 2 for dpo."""
    return float(preference_loss(objective, torch.zeros((), dtype=torch.float64)))


def pair_terms(objective: Objective, scores: PairScores, reference: PairLogProbs) -> dict[str, Tensor]:
    """All terms of the pairs, a value a row. `sft` is a sum over scored tokens; a feed counts these."""
    own = scores.log_probs
    apart = torch.stack([own.chosen - reference.chosen, own.rejected - reference.rejected])
    log_ratio = apart
    if objective.is_by_token:
        log_ratio = apart / torch.stack([scores.chosen_size, scores.rejected_size]).clamp(min=1)
    margin = log_ratio[0] - log_ratio[1]
    # Of a policy that is still its reference, the sign of the margin is that of rounding: neither is preferred.
    is_tie = (margin == 0) | (apart.abs() <= _ROUNDING * torch.stack(own).abs()).all(0)
    return {
        DPO: preference_loss(objective, margin),
        SFT: -own.chosen,
        "accuracy": torch.where(is_tie, 0.5, (margin > 0).to(margin.dtype)),
        "margin": objective.beta * margin,
        "chosen_reward": objective.beta * log_ratio[0],
        "rejected_reward": objective.beta * log_ratio[1],
        "chosen_log_prob": own.chosen,
        "rejected_log_prob": own.rejected,
        # With pairs that come from elsewhere it measures how far the policy has moved on them.
        "kl": policy.kl_k2(torch.stack(own), torch.stack(reference)).mean(0),
        **scores.others,
    }
