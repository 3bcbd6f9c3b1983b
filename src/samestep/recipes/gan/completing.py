"""Completing prompts with a trained generator, outside of training: the same bits at any number of ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from samestep import GenerationConfig, Trained, World
from samestep.models.decoding import position_limit
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.players import PromptWriter, generator_without_stage, open_player
from samestep.recipes.gan.task import GENERATOR
from samestep.train.trained.batch_inference import complete, network_of


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
        found = complete(generator, network, compute, [prompt.tokens for prompt in prompts], ids)
        texts = [player.decode(tokens) for tokens, _ in found]
        return Written(texts, [not ended for _, ended in found], sum(prompt.is_cut for prompt in prompts))
