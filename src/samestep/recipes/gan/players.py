"""The two players, a generator and a judge: each a language model, with what turns text into its tokens and back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from samestep import (
    Batch,
    CausalConfig,
    LanguageModel,
    TrainedModelSettings,
    UserError,
    World,
    completion_log_probs,
    open_language_model,
)
from samestep.models.decoding import position_limit
from samestep.recipes.gan.data import TextRows


@dataclass(frozen=True)
class PlayerConfig(TrainedModelSettings):
    """A language model."""

    model: str | None = None
    """A folder with a causal model of transformers, a model of the Hub (org/name or org/name@revision), or a run; null:
    model_name, or else the built-in network on bytes."""
    network: CausalConfig = field(default_factory=lambda: CausalConfig(tied_head=True))
    """The shape of the built-in network."""
    init_from: str | None = None
    """Begin with the weights of a run, a checkpoint or a weight file such as generator_step_20.pt; null: with those of
    the model, or of what the run's own init_from names."""


def open_player(config: PlayerConfig, default: str | None, world: World) -> LanguageModel:
    """The player that a configuration names; `default` is the model of both. Collective, since it may be downloaded."""
    return open_language_model(config.model or default, world, shape=config.network, dtype=config.weights_dtype)


def language_models(config: Any) -> dict[str, Callable[[World], LanguageModel]]:
    """For each learner, a function that opens its model."""
    players = {"generator": config.generator, "judge": config.judge}
    return {name: partial(open_player, player, config.model_name) for name, player in players.items()}


def build_networks(config: Any) -> dict[str, Callable[[], nn.Module]]:
    """For each learner, a function that builds its network."""

    def build(open_model: Callable[[World], LanguageModel]) -> nn.Module:
        return open_model(World.single()).network()

    return {name: partial(build, open_model) for name, open_model in language_models(config).items()}


@dataclass(frozen=True)
class Prompt:
    """What a generator reads."""

    tokens: list[int]
    is_cut: bool
    """Whether the end of the text was left out, because the network takes no more."""


class PromptWriter:
    """Makes prompts that leave room for a completion; what is too long is cut inside of the template."""

    def __init__(self, player: LanguageModel, limit: int | None, new_tokens: int) -> None:
        self._player, self._room = player, None if limit is None else limit - new_tokens
        around = len(player.prompt(""))
        if self._room is not None and self._room <= around:
            raise UserError(
                f"Set writing.max_new_tokens below {limit} - {around}: the generator takes {limit} tokens in all, and "
                f"{around} of them stand around a prompt; it is {new_tokens}."
            )

    def __call__(self, text: str) -> Prompt:
        tokens = self._player.prompt(text)
        if self._room is None or len(tokens) <= self._room:
            return Prompt(tokens, is_cut=False)
        before, after = self._player.around("")
        kept = self._room - len(before) - len(after)
        return Prompt([*before, *self._player.encode(text)[:kept], *after], is_cut=True)


class HumanTexts:
    """What a feed reads: prompts and human texts as tokens, cut to the length that a completion may have."""

    def __init__(self, rows: TextRows, player: LanguageModel, network: nn.Module, limit: int) -> None:
        self._rows, self._player, self._limit = rows, player, limit
        self._prompts = PromptWriter(player, position_limit(network), limit)
        self.pad = {"prompt": player.pad, "human": player.pad, "is_prompt": False, "is_human": False}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        record = self._rows.records[index]
        prompt = self._prompts(record.prompt).tokens
        human = [*self._player.encode(record.human), self._player.answer_end][: self._limit]
        return {
            "prompt": torch.tensor(prompt),
            "is_prompt": torch.ones(len(prompt), dtype=torch.bool),
            "human": torch.tensor(human),
            "is_human": torch.ones(len(human), dtype=torch.bool),
        }

    def origins(self) -> list[Any]:
        return list(self._rows.origins())


def human_nats(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    """A loss: how unlikely each human text is, in nats."""
    given = batch["prompt"], batch["is_prompt"], batch["human"], batch["is_human"]
    return {"nats": -completion_log_probs(network, *given).log_probs.sum(1)}


def count_nats(batch: Batch) -> Mapping[str, Tensor]:
    """What the term of `human_nats` is divided by: tokens."""
    return {"nats": batch["is_human"].sum(1)}
