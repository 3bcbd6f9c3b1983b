"""The options of `samestep sample` for this recipe, and the prompts they name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from samestep import UserError
from samestep.core.config.bounds import Count
from samestep.core.config.checked import CheckedConfig
from samestep.core.paths import check_new_file
from samestep.data.prompt_files import read_prompts

Dtype = Literal["float32", "bfloat16", "float16", "float64"]
"""Types that a network can be used in."""


@dataclass(frozen=True)
class SampleOptions(CheckedConfig):
    """Which texts to generate, and how to show them."""

    prompt: str = ""
    """Text to continue; [[8]] in it is a gap of 8 tokens to fill in, and then nothing is appended."""
    gap: str | None = None
    """A marker for gaps in place of [[8]], such as ___; each gets --length tokens."""
    prompts: Path | None = None
    """A file with one prompt per line, or a .jsonl file whose lines hold "prompt" (or "text")."""
    samples: Count = 1
    """Texts for each prompt."""
    chat: bool = False
    """The prompt is a question to an instruction-tuned model, and only its answer is printed."""
    watch: bool = False
    """Show the diffusion step by step."""
    html: Path | None = None
    """Write the diffusion as an animation to this .html file."""
    dtype: Dtype | None = None
    """Type of the network, in place of the type the weights are stored in."""

    def __post_init__(self) -> None:
        """Refuse options that do not go together, before the model is opened."""
        if self.prompt and self.prompts is not None:
            raise UserError("Give --prompt or --prompts, not both.")
        if self.chat and self.gap is not None:
            raise UserError("Leave out --gap or --chat; an answer has no gaps.")
        if self.html is not None:
            check_new_file("--html", self.html)

    def texts(self) -> list[str]:
        """The prompts; without the options, one empty prompt."""
        return [self.prompt] if self.prompts is None else read_prompts(self.prompts)
