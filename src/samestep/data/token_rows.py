"""Rows of tokens that a feed reads: running text cut into rows, or prompts with their answers."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from samestep.data.data_file import DataFile
from samestep.data.text import Tokens, origins


class TokenRows:
    """Tokens cut into rows. Every row has its `tokens`, how many of them count (`length`), and how many at its
    beginning are given and never masked (`prompt`)."""

    length: int
    """Tokens in a row, padding included."""
    size: int
    """Tokens of all rows, without padding."""

    def __len__(self) -> int:
        raise NotImplementedError

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        """Many rows at once; only the memory pages that hold them are read."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return {name: value[0] for name, value in self.rows(np.array([index])).items()}


class TextRows(TokenRows):
    """Contiguous, non-overlapping rows of `length` tokens over a region.

    The last row is padded, with a smaller `length`, so that every token of the region belongs to exactly one row.
    """

    def __init__(self, tokens: Tokens, length: int, pad: int) -> None:
        assert len(tokens) > 0
        assert length > 0
        self.tokens, self.length, self.pad = tokens, length, pad
        self.size = len(tokens)

    def __len__(self) -> int:
        return -(-len(self.tokens) // self.length)

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        starts = np.asarray(indices, dtype=np.int64) * self.length
        positions = starts[:, None] + np.arange(self.length)
        total = len(self.tokens)
        values = self.tokens[np.minimum(positions, total - 1)].astype(np.int64)
        real = np.minimum(total - starts, self.length)
        return token_batch(np.where(positions < total, values, self.pad), real, np.zeros_like(starts))

    def origins(self) -> list[DataFile | np.ndarray]:
        return origins(self.tokens)


class AnswerRows(TokenRows):
    """Chats: each row is a prompt and its answer, padded with the end token.

    The padding counts: from it the network learns where an answer ends.
    """

    def __init__(self, tokens: Tokens, index: Tokens, length: int, pad: int) -> None:
        """`index` has three numbers a row: where it begins, how long it is, how much of that is prompt."""
        assert len(index) >= 3
        self.tokens, self.index, self.length, self.pad = tokens, index, length, pad
        self.size = len(tokens)

    def __len__(self) -> int:
        return len(self.index) // 3

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        entries = np.asarray(indices, dtype=np.int64)[:, None] * 3 + np.arange(3)
        start, real, prompt = (column[:, None] for column in self.index[entries].astype(np.int64).T)
        positions = np.arange(self.length)
        values = self.tokens[start + np.minimum(positions, real - 1)].astype(np.int64)
        tokens = np.where(positions < real, values, self.pad)
        return token_batch(tokens, np.full(len(tokens), self.length), prompt[:, 0])

    def origins(self) -> list[DataFile | np.ndarray]:
        return [*origins(self.tokens), *origins(self.index)]


def token_batch(tokens: np.ndarray, length: np.ndarray, prompt: np.ndarray) -> dict[str, Tensor]:
    """Rows [rows, tokens], how many tokens of each count, and how many at its beginning are given."""
    return {
        name: torch.from_numpy(np.ascontiguousarray(value))
        for name, value in (("tokens", tokens), ("length", length), ("prompt", prompt))
    }
