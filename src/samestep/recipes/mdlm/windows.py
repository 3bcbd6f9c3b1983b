"""A run of tokens cut into rows."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from samestep.data.text import Tokens


class Windows:
    """Contiguous, non-overlapping rows of `length` tokens over a region.

    The last row is padded and says so in its `length`, so that every token of the region belongs to exactly one row.
    """

    def __init__(self, tokens: Tokens, length: int, pad: int) -> None:
        assert len(tokens) > 0
        assert length > 0
        self.tokens, self.length, self.pad = tokens, length, pad

    def __len__(self) -> int:
        """Number of rows."""
        return -(-len(self.tokens) // self.length)

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        """One row: its tokens, and how many of them are real."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return {name: value[0] for name, value in self.rows(np.array([index])).items()}

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        """Many rows at once; only the pages they lie on are read."""
        starts = np.asarray(indices, dtype=np.int64) * self.length
        positions = starts[:, None] + np.arange(self.length)
        total = len(self.tokens)
        values = self.tokens[np.minimum(positions, total - 1)].astype(np.int64)
        return {
            "tokens": torch.from_numpy(np.where(positions < total, values, self.pad)),
            "length": torch.from_numpy(np.minimum(total - starts, self.length)),
        }
