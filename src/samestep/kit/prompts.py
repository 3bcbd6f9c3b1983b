"""What `samestep sample` has for texts in every recipe: prompts on the command line, and a record for each text."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from samestep.core.config.bounds import Count
from samestep.core.config.checked import CheckedConfig
from samestep.core.errors import UserError
from samestep.core.records import Json
from samestep.data.prompt_files import read_prompts


@dataclass(frozen=True)
class PromptOptions(CheckedConfig):
    """Which prompts to complete, and how often."""

    prompt: str = ""
    """Text to continue."""
    prompts: Path | None = None
    """A file with one prompt per line, or a .jsonl file whose lines hold "prompt" (or "text")."""
    samples: Count = 1
    """Texts for each prompt."""

    def __post_init__(self) -> None:
        self.refuse_both()

    def refuse_both(self) -> None:
        """Refuse a prompt beside a file of them."""
        if self.prompt and self.prompts is not None:
            raise UserError("Give --prompt or --prompts, not both.")

    def texts(self) -> list[str]:
        """The prompts that are given; an empty one where none is."""
        return [self.prompt] if self.prompts is None else read_prompts(self.prompts)


def sample_texts(
    prompts: Sequence[str], samples: int, complete: Callable[[list[int], Tensor], Iterable[tuple[str, bool]]]
) -> list[dict[str, Json]]:
    """Each prompt completed `samples` times: one record per text, in order.

    `complete` gets the number of the prompt of each text, and ids [texts, 2], which key the noise; it gives for each
    the text, and whether it ended by itself.
    """
    requests = [(number, sample) for number in range(len(prompts)) for sample in range(samples)]
    ids = torch.tensor([(sample, number) for number, sample in requests])
    found = complete([number for number, _ in requests], ids)
    return [
        {"prompt": prompts[number], "sample": sample, "text": text, "finished": ended}
        for (number, sample), (text, ended) in zip(requests, found, strict=True)
    ]
