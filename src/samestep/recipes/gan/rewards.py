"""What the generator is rewarded with for a text, by what the judge made of it.

    probability     that the judge takes it for a person's; 0 where there was too little to judge
    log_odds        the same as log-odds, clipped: where the judge is sure, a probability hardly changes any more
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from samestep.recipes.gan.config import GanConfig

Rewards = Callable[[Mapping[str, Tensor]], Tensor]
"""The rewards [rows] of the rows of a rollout."""


def make_rewards(config: GanConfig) -> Rewards:
    """The rewards that a configuration asks for."""

    def log_odds(rows: Mapping[str, Tensor]) -> Tensor:
        return rows["log_odds"].clamp(-config.reward_clip, config.reward_clip)

    def probability(rows: Mapping[str, Tensor]) -> Tensor:
        return rows["reward"]

    return log_odds if config.reward == "log_odds" else probability
