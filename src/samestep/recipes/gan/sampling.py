"""What `samestep sample` does: the trained generator completes prompts, the same on any number of ranks."""

from dataclasses import dataclass
from pathlib import Path

import torch

from samestep import Trained, UserError, World
from samestep.core.config.bounds import Count
from samestep.core.config.checked import CheckedConfig
from samestep.core.records import Json
from samestep.data.prompt_files import read_prompts
from samestep.recipes.gan.completing import Completing
from samestep.recipes.gan.data import load


@dataclass(frozen=True)
class SampleOptions(CheckedConfig):
    """Which texts to generate."""

    prompt: str = ""
    """What to write about; by default, the first prompts that were kept for validation."""
    prompts: Path | None = None
    """A file with one prompt per line, or a .jsonl file whose lines hold "prompt" (or "text")."""
    samples: Count = 1
    """Texts for each prompt."""

    def __post_init__(self) -> None:
        """Refuse options that do not go together, before the model is opened."""
        if self.prompt and self.prompts is not None:
            raise UserError("Give --prompt or --prompts, not both.")

    def texts(self) -> list[str]:
        """The prompts that are named."""
        named = [self.prompt] if self.prompt else []
        return named if self.prompts is None else read_prompts(self.prompts)


def generate(trained: Trained, options: SampleOptions, world: World) -> list[dict[str, Json]]:
    """Complete each prompt `samples` times: one record per text, in order, on every rank."""
    config = trained.config
    texts = options.texts() or [record.prompt for record in load(config.data, config.seed).validation.records[:1]]
    requests = [(number, sample) for number in range(len(texts)) for sample in range(options.samples)]
    complete = Completing("gan/sample", config.writing, config.seed, config.batch_size)
    ids = torch.tensor([(sample, number) for number, sample in requests])
    written = complete(trained, [texts[number] for number, _ in requests], ids, world)
    return [
        {"prompt": texts[number], "sample": sample, "text": text}
        for (number, sample), text in zip(requests, written.texts, strict=True)
    ]
