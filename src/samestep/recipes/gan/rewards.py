"""What the generator is rewarded with for a text (`reward=`):

    probability         that the judge takes it for a person's; 0 where there was too little to judge
    log_odds            the same as log-odds, clipped: where the judge is sure, a probability hardly changes any more
    module:function     a function of your own, of one text at a time:

        def reward(text: RewardedText) -> float:
            return text.probability - 0.1 * text.generated.count("very")

It sees one text and nothing of the batch, so the reward is the same on any number of ranks and in micro-batches of any
size, as long as the function itself draws no random numbers and remembers nothing.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from samestep import UserError
from samestep.core.arguments import check_function
from samestep.recipes.gan.data import Record
from samestep.train.api.named_code import find_function, raised

PROBABILITY, LOG_ODDS = "probability", "log_odds"


@dataclass(frozen=True)
class RewardedText:
    """What a reward function sees."""

    prompt: str
    human: str
    """What a person wrote for the prompt."""
    generated: str
    """What the generator wrote; the text that is rewarded."""
    group: str
    """The group of the prompt, such as a genre."""
    probability: float
    """How likely the judge finds it that a person wrote it; 0 where it was too short to judge."""


Rewards = Callable[[Sequence[Record], Sequence[str], Mapping[str, Tensor]], Tensor]
"""The rewards [rows] of some texts for their records, with what the judge made of them."""


def make_rewards(name: str, clip: float) -> Rewards:
    """The rewards of this name; log-odds are clipped at `clip`."""
    if name == PROBABILITY:
        return lambda records, texts, rows: rows["reward"]
    if name == LOG_ODDS:
        return lambda records, texts, rows: rows["log_odds"].clamp(-clip, clip)
    function = find_reward(name)

    def own(records: Sequence[Record], texts: Sequence[str], rows: Mapping[str, Tensor]) -> Tensor:
        fooled = rows["reward"]
        found = [
            _value(name, function, RewardedText(record.prompt, record.human, text, record.group, probability))
            for record, text, probability in zip(records, texts, fooled.tolist(), strict=True)
        ]
        return torch.tensor(found, dtype=fooled.dtype, device=fooled.device)

    return own


def find_reward(name: str) -> Callable[[RewardedText], Any]:
    """The function of the user's that a name stands for; else refused."""
    if ":" not in name:
        raise UserError(f"Set reward to {PROBABILITY}, {LOG_ODDS}, or module:function; it is {name!r}.")
    function = find_function("reward", name)
    check_function(f"reward={name}", function, ["text"])
    return function


def _value(name: str, function: Callable[[RewardedText], Any], text: RewardedText) -> float:
    try:
        value = function(text)
    except Exception as error:
        raise UserError(f"Correct reward={name}: it raised {raised(error)} for {text.generated[:80]!r}.") from error
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    raise UserError(f"Let reward={name} return a finite number; it gave {value!r} for {text.generated[:80]!r}.")


def unrepeated(text: RewardedText) -> float:
    """A reward to begin with: the judge's, times the share of words that are not said again."""
    words = re.findall(r"\w+", text.generated.lower())
    return text.probability * len(set(words)) / max(1, len(words))
