"""Rows of tokens that a feed reads: running text cut into rows, or prompts with their answers."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Self

import numpy as np
import torch
from torch import Tensor

from samestep.data.data_file import DataFile
from samestep.data.text import Tokens, origins

LEAST_WIDTH = 16


class TokenRows:
    """Tokens cut into rows. Every row has its `tokens`, how many of them are its own and no padding (`length`), and how
    many at its beginning are given and never masked (`prompt`)."""

    length: int
    """Tokens in a row at most."""
    width: int
    """Tokens in each of the rows that are read now, padding included."""
    size: int
    """Tokens of all rows, without padding."""

    def __len__(self) -> int:
        raise NotImplementedError

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        """Many rows at once; only the memory pages that hold them are read."""
        raise NotImplementedError

    def origins(self) -> list[DataFile | np.ndarray]:
        """Where they come from."""
        raise NotImplementedError

    def of_step(self, step: int, indices: np.ndarray) -> "TokenRows":
        """The rows as they are read in a step with this global batch."""
        return self

    def of_width(self, width: int) -> Self:
        """The same rows, read with this many tokens each: what is behind them is not read."""
        rows = copy(self)
        rows.width = width
        return rows

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
        self.tokens, self.length, self.width, self.pad = tokens, length, length, pad
        self.size = len(tokens)

    def __len__(self) -> int:
        return -(-len(self.tokens) // self.length)

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        starts = np.asarray(indices, dtype=np.int64) * self.length
        positions = starts[:, None] + np.arange(self.width)
        total = len(self.tokens)
        values = self.tokens[np.minimum(positions, total - 1)].astype(np.int64)
        real = np.minimum(total - starts, self.width)
        return token_batch(np.where(positions < total, values, self.pad), real, np.zeros_like(starts))

    def origins(self) -> list[DataFile | np.ndarray]:
        return origins(self.tokens)


class JoinedRows(TokenRows):
    """The rows of several sources of one length, one source after the other; none goes over from one to the next."""

    def __init__(self, sources: Sequence[TokenRows]) -> None:
        self.sources = list(sources)
        self.length, self.width = self.sources[0].length, self.sources[0].width
        self.size = sum(source.size for source in self.sources)
        self._ends = np.cumsum([len(source) for source in self.sources])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        numbers = np.asarray(indices, dtype=np.int64)
        which = np.searchsorted(self._ends, numbers, side="right")
        places = [np.flatnonzero(which == number) for number in range(len(self.sources))]
        starts = [0, *self._ends[:-1].tolist()]
        found = [
            source.of_width(self.width).rows(numbers[where] - start)
            for source, where, start in zip(self.sources, places, starts)
            if len(where)
        ]
        back = torch.from_numpy(np.argsort(np.concatenate(places)))
        return {name: torch.cat([part[name] for part in found])[back] for name in found[0]}

    def origins(self) -> list[DataFile | np.ndarray]:
        return [origin for source in self.sources for origin in source.origins()]


class AnswerRows(TokenRows):
    """Chats: each row is a prompt and its answer, padded with the end token.

    In a step, the rows of the whole global batch are padded to one width, which fits the longest of them: so it is the
    same on any number of ranks. Few widths occur (see `rounded_width`).
    """

    def __init__(self, tokens: Tokens, index: Tokens, length: int, pad: int) -> None:
        """`index` has three numbers a row: where it begins, how long it is, how much of that is prompt."""
        assert len(index) >= 3
        self.tokens, self.index, self.length, self.width, self.pad = tokens, index, length, length, pad
        self.size = len(tokens)

    def __len__(self) -> int:
        return len(self.index) // 3

    def of_step(self, step: int, indices: np.ndarray) -> "AnswerRows":
        return self.of_width(self.width_of(indices))

    def width_of(self, indices: np.ndarray) -> int:
        """The width of a global batch of these rows."""
        return min(self.length, rounded_width(int(self.lengths(indices).max())))

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """The tokens of these rows, without padding."""
        return self._entries(indices, 1)

    def prompts(self, indices: np.ndarray) -> np.ndarray:
        """How many tokens of these rows are prompt."""
        return self._entries(indices, 2)

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        start, real, prompt = (self._entries(indices, column) for column in range(3))
        positions = np.arange(self.width)
        values = self.tokens[start[:, None] + np.minimum(positions, real[:, None] - 1)].astype(np.int64)
        return token_batch(np.where(positions < real[:, None], values, self.pad), real, prompt)

    def origins(self) -> list[DataFile | np.ndarray]:
        return [*origins(self.tokens), *origins(self.index)]

    def _entries(self, indices: np.ndarray, column: int) -> np.ndarray:
        return self.index[np.asarray(indices, dtype=np.int64) * 3 + column].astype(np.int64)


def rounded_width(tokens: int) -> int:
    """This many tokens rounded up to a multiple of 16, and of an eighth of the next power of two: from 16 to 4096 there
    are 28 widths, since a network is compiled or recorded for each, and less than a fifth of a row is rounding."""
    step = max(LEAST_WIDTH, 1 << max(0, (tokens - 1).bit_length() - 3))
    return -(-tokens // step) * step


def widths_between(least: int, most: int) -> list[int]:
    """The rounded widths from `least` on, and `most`."""
    widths = [least]
    while widths[-1] < most:
        widths.append(min(most, rounded_width(widths[-1] + 1)))
    return widths


def token_batch(tokens: np.ndarray, length: np.ndarray, prompt: np.ndarray) -> dict[str, Tensor]:
    """Rows [rows, tokens], how many tokens of each are no padding, and how many at its beginning are given."""
    return {
        name: torch.from_numpy(np.ascontiguousarray(value))
        for name, value in (("tokens", tokens), ("length", length), ("prompt", prompt))
    }
