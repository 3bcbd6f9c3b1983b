"""What preparing running text and preparing chats have in common: what is counted, and where tokens go."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from samestep.core.errors import UserError
from samestep.data.prepared.split import REGIONS, Region
from samestep.data.prepared.write import Shards
from samestep.data.vocabulary import Tokenizer

Done = Callable[[int], None]
"""Told how many bytes of text are done."""


@dataclass
class Count:
    """What there is."""

    spell: bool
    """Whether to note every character that occurs."""
    documents: int = 0
    bytes: int = 0
    characters: set[str] = field(default_factory=set)

    def see(self, text: str) -> None:
        """Count a text in."""
        self.bytes += len(text.encode("utf-8"))
        if self.spell:
            self.characters.update(text)


@dataclass(frozen=True)
class Writing:
    """Where tokens go, and how they are made."""

    folder: Path
    tokenizer: Tokenizer
    row_length: int
    shard_bytes: int

    @property
    def dtype(self) -> str:
        """The smallest type that holds every token."""
        return "<u2" if self.tokenizer.vocabulary.size <= 1 << 16 else "<u4"

    def shards(self) -> dict[Region, Shards]:
        """Files for the tokens of each region."""
        most = self.shard_bytes // np.dtype(self.dtype).itemsize
        return {region: Shards(self.folder, region, self.dtype, most) for region in REGIONS}

    def check(self, tokens: np.ndarray) -> None:
        """Refuse text that holds the mask: it stands for what is hidden, and for nothing else."""
        if (tokens == self.tokenizer.vocabulary.mask).any():
            raise UserError("Take the mask token out of the text, or name another with --mask_token.")

    def facts(self, shards: dict[Region, Shards]) -> dict[str, Any]:
        """What was written, closed and on the disk."""
        for region in REGIONS:
            shards[region].close()
        return {
            "sequence_length": self.row_length,
            "total_tokens": sum(shards[region].tokens for region in REGIONS),
            "train_tokens": shards["train"].tokens,
            "val_tokens": shards["validation"].tokens,
            "dtype": self.dtype,
            "shards": {region: shards[region].files for region in REGIONS},
        }
