"""The options of `samestep sample`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from samestep import UserError
from samestep.core.config.bounds import Count, NotNegative
from samestep.core.config.checked import CheckedConfig
from samestep.core.paths import expand_home

_PROTEIN = (
    "pdb_file",
    "pdb_list",
    "design_chains",
    "fixed_chains",
    "mutable_positions",
    "mutable_ranges",
    "output_dir",
)
_TEXT = ("prompt", "prompts", "chat", "max_new_tokens")


@dataclass(frozen=True)
class SampleOptions(CheckedConfig):
    """Sequences for protein structures, or texts."""

    pdb_file: Path | None = None
    """protein: a structure to design sequences for: a PDB or mmCIF file, gzipped or not."""
    pdb_list: Path | None = None
    """protein: a file with the path of a structure on each line, from its folder or the working directory."""
    design_chains: str | None = None
    """protein: the chains that get new sequences, such as A,B; by default all that are not fixed."""
    fixed_chains: str | None = None
    """protein: chains that stand beside them and keep their letters; other chains are left out."""
    mutable_positions: str | None = None
    """protein: the positions that may change, such as 0,5,6; they count from 0 over the design chains as these are
    named. By default all may."""
    mutable_ranges: str | None = None
    """protein: the same as ranges, ends included, such as 3-9,12-20."""
    output_dir: Path | None = None
    """protein: the folder that gets NAME.json and NAME.fa for each structure; by default designs."""
    prompt: str | None = None
    """text: what the model goes on from."""
    prompts: Path | None = None
    """text: a file with one prompt per line, or a .jsonl file whose lines hold "prompt" (or "text")."""
    chat: bool = False
    """text: a prompt is what a user says to a chat model, and not text that goes on."""
    max_new_tokens: Count | None = None
    """text: tokens of a text at most; by default 128."""
    num_samples: Count = 1
    """Sequences for each structure, or texts for each prompt."""
    temperature: NotNegative | None = None
    """0 takes the likeliest letter or token, 1 samples from the network's own probabilities; by default the run's
    sampling_temperature for proteins, and 1 for texts."""
    batch_size: Count = 32
    """Sequences or texts that are made together on a rank."""

    def __post_init__(self) -> None:
        """Refuse what cannot be, before the model is opened."""
        for first, second in (("pdb_file", "pdb_list"), ("prompt", "prompts")):
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise UserError(f"Give --{first} or --{second}, not both.")

    @property
    def folder(self) -> Path:
        """Where designs are written."""
        return expand_home(self.output_dir or "designs")

    def check_for(self, family: Literal["protein", "text"]) -> None:
        """Refuse options that are for the other family, or none for this one."""
        others, what = (_TEXT, "designs proteins") if family == "protein" else (_PROTEIN, "writes texts")
        given = [f"--{name}" for name in others if getattr(self, name) not in (None, False)]
        if given:
            raise UserError(f"Leave out {', '.join(given)}: this model {what}.")
        if family == "protein" and self.pdb_file is None and self.pdb_list is None:
            raise UserError("Name a structure with --pdb_file, or a file with the paths of several with --pdb_list.")
        if family == "text" and self.prompt is None and self.prompts is None:
            raise UserError("Give a text to go on from with --prompt, or a file of them with --prompts.")
