"""What `samestep sample` does: the trained generator completes prompts, the same bits on any number of ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from samestep import Trained, World
from samestep.core.json_files import Json
from samestep.kit.generation import generator_outside
from samestep.kit.prompts import PromptOptions
from samestep.models.decoding import position_limit
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import load
from samestep.recipes.gan.players import PromptWriter, open_player
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


def complete_prompts(
    trained: Trained, how: GanConfig, purpose: str, texts: Sequence[str], ids: Tensor, world: World
) -> Written:
    """Complete prompts with a trained generator, with the settings for writing of `how`, which may be another run's.

    `purpose`, the seed and `ids` [prompts, 2] key the noise. Collective; all ranks get all texts.
    """
    config: GanConfig = trained.config
    player = open_player(config.generator, config.model_name, world)
    network, compute = network_of(trained, GENERATOR, world.device)
    write_prompt = PromptWriter(player, position_limit(network), how.writing.max_new_tokens)
    prompts = [write_prompt(text) for text in texts]
    generator = generator_outside(player, purpose, how.writing, how.seed, world, how.rows_at_once)
    found = complete(generator, network, compute, [prompt.tokens for prompt in prompts], ids)
    texts = [player.decode(tokens) for tokens, _ in found]
    return Written(texts, [not ended for _, ended in found], sum(prompt.is_cut for prompt in prompts))


@dataclass(frozen=True)
class SampleOptions(PromptOptions):
    """Which texts to generate."""

    prompt: str | None = None
    """What to write about; by default, the first prompt that was kept for validation."""


def generate(trained: Trained, options: SampleOptions, world: World) -> list[dict[str, Json]]:
    """Complete each prompt `samples` times: one record per text, in order, on every rank."""
    config: GanConfig = trained.config

    def held_out() -> list[str]:
        return [record.prompt for record in load(config.data, config.seed).validation.records[:1]]

    requests = options.requests(held_out)
    prompts = requests.each(requests.prompts)
    written = complete_prompts(trained, config, "gan/sample", prompts, requests.ids(), world)
    found = zip(written.texts, written.cut, strict=True)
    return requests.records({"text": text, "finished": not cut} for text, cut in found)
