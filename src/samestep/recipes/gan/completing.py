"""Completing prompts with a trained generator, outside of training: the same bits at any number of ranks.

Which rows are computed together can change the last bits of what a network says, and so a token. So the batches are
made first, of prompts of similar length, and then shared out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samestep import GenerationConfig, Trained, World
from samestep.models.decoding import position_limit
from samestep.parallel.precision import COMPUTE_DTYPES, autocast, cast_for_good
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.players import PromptWriter, generator_without_stage, open_player
from samestep.recipes.gan.task import GENERATOR


@dataclass(frozen=True)
class Written:
    """What a generator wrote, one text for each prompt."""

    texts: list[str]
    cut: list[bool]
    """Whether it went on to the limit of tokens without an end."""
    cut_prompts: int = 0
    """Prompts that were longer than the network takes."""


@dataclass(frozen=True)
class Completing:
    """How prompts are completed."""

    purpose: str
    """What the noise is for: other purposes have other noise."""
    how: GenerationConfig
    seed: int
    rows: int
    """Prompts that are completed together."""

    def __call__(self, trained: Trained, texts: Sequence[str], ids: Tensor, world: World) -> Written:
        """Complete the prompts; `ids` [prompts, 2] key the noise. Collective; all ranks get all texts."""
        config: GanConfig = trained.config
        player = open_player(config.generator, config.model_name, world)
        network, compute = network_of(trained, GENERATOR, world.device)
        write_prompt = PromptWriter(player, position_limit(network), self.how.max_new_tokens)
        prompts = [write_prompt(text) for text in texts]
        generator = generator_without_stage(player, self.purpose, self.how, self.seed, world, self.rows)
        mine: dict[int, tuple[str, bool]] = {}
        for batch in my_batches([len(prompt.tokens) for prompt in prompts], self.rows, world):
            with autocast(world.device, compute):
                made = generator(network, [prompts[number].tokens for number in batch], ids[batch], step=0)
            completions = [player.decode(tokens) for tokens in made.to_lists()]
            mine |= zip(batch, zip(completions, (~made.finished).tolist(), strict=True), strict=True)
        found = in_order(world.gather(list(mine.items())))
        return Written([text for text, _ in found], [cut for _, cut in found], sum(prompt.is_cut for prompt in prompts))


def network_of(trained: Trained, learner: str, device: torch.device) -> tuple[nn.Module, torch.dtype | None]:
    """A network that is only used, and the type that it computes in where that is not the type of its weights."""
    network, compute = trained.network(learner, device), compute_dtype(trained.config, device)
    cast_for_good(network, compute)
    return network, compute


def compute_dtype(config: GanConfig, device: torch.device) -> torch.dtype | None:
    """The type of mixed precision that a run was trained with; None on a CPU."""
    return None if device.type == "cpu" else COMPUTE_DTYPES.get(config.distributed.mixed_precision)


def my_batches(lengths: Sequence[int], rows: int, world: World) -> list[list[int]]:
    """The batches of this rank, of rows of similar length; every rank has as many, though some may be empty."""
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    batches = [order[start : start + rows] for start in range(0, len(order), rows)]
    batches += [[] for _ in range(-len(batches) % world.size)]
    return batches[world.rank :: world.size]


def in_order(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """What the ranks computed, as pairs of number and value: the values by number."""
    return [value for _, value in sorted((pair for part in parts for pair in part), key=lambda pair: pair[0])]
