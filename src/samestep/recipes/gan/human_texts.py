"""What people wrote, as tokens of the generator, and how likely the generator finds it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from samestep import Batch, completion_log_probs
from samestep.models.decoding import position_limit
from samestep.recipes.gan.data import TextRows
from samestep.recipes.gan.players import Player, PromptWriter


class HumanTexts:
    """Prompts and human texts as tokens, cut to the length that a completion may have."""

    def __init__(self, rows: TextRows, player: Player, network: nn.Module, limit: int) -> None:
        self._rows, self._player, self._limit = rows, player, limit
        self._prompts = PromptWriter(player, position_limit(network), limit)
        self.pad = {"prompt": player.pad, "human": player.pad, "is_prompt": False, "is_human": False}
        """What a feed pads them with."""

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        record = self._rows.records[index]
        prompt = self._prompts(record.prompt).tokens
        human = [*self._player.encode(record.human), *self._player.eos[:1]][: self._limit]
        return {
            "prompt": torch.tensor(prompt),
            "is_prompt": torch.ones(len(prompt), dtype=torch.bool),
            "human": torch.tensor(human),
            "is_human": torch.ones(len(human), dtype=torch.bool),
        }

    def origins(self) -> list[Any]:
        """Where the texts come from, for the comparison of a resumed run."""
        return list(self._rows.origins())


def human_nats(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    """A loss: how unlikely each human text is, in nats."""
    given = batch["prompt"], batch["is_prompt"], batch["human"], batch["is_human"]
    return {"nats": -completion_log_probs(network, *given).log_probs.sum(1)}


def count_nats(batch: Batch) -> Mapping[str, Tensor]:
    """What the term of `human_nats` is divided by: tokens."""
    return {"nats": batch["is_human"].sum(1)}
