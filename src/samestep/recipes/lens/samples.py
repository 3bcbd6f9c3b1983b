"""Which activations there are: sample i is one token of one text, and has another sample beside it.

All of it is a function of the seed and of the sample's number, so that activations that are dumped and activations that
are computed with every batch are the same ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep import noise
from samestep.recipes.lens.config import ActivationDumper
from samestep.recipes.lens.pretokenize import TokenRows
from samestep.train.artifacts.array_rows import ArrayRows

_POSITION = noise.purpose("lens/position")
_OTHER = noise.purpose("lens/other")
TRAIN, VALIDATION = "train", "validation"


@dataclass(frozen=True)
class Region:
    """The samples of one part of the texts."""

    number: int
    """0 for training, 1 for validation."""
    first_text: int
    texts: int
    samples: int


def regions_of(config: ActivationDumper, key: dict[str, Any]) -> dict[str, Region]:
    """Both parts; `key` says how many texts each has."""
    train, validation = int(key[TRAIN]), int(key[VALIDATION])
    return {
        TRAIN: Region(0, 0, train, config.num_samples or train),
        VALIDATION: Region(1, train, validation, config.validation_samples or validation),
    }


class SampleRows:
    """Samples of a region as rows: the tokens of a text, the position in it, and the same of another sample."""

    def __init__(self, tokens: ArrayRows, region: Region, config: ActivationDumper, seed: int) -> None:
        self._tokens, self._region, self._config, self._seed = tokens, region, config, seed

    def __len__(self) -> int:
        return self._region.samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.rows(np.array([index])).items()}

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        """`tokens` [rows, columns] and `position`, and `other_tokens` and `other_position`."""
        own = self._texts(indices)
        others = self._texts(other_samples(indices, self._region, self._seed))
        return {**own, **{f"other_{name}": value for name, value in others.items()}}

    def origins(self) -> list[Path]:
        """What a resume compares."""
        return self._tokens.origins()

    def _texts(self, samples: np.ndarray) -> dict[str, Tensor]:
        found = self._tokens.rows(self._region.first_text + samples % self._region.texts)
        lengths = found["length"].numpy().astype(np.int64)
        positions = positions_of(samples, lengths, self._region, self._config, self._seed)
        return {"tokens": found["tokens"].long(), "position": torch.from_numpy(positions)}


def positions_of(
    samples: np.ndarray, lengths: np.ndarray, region: Region, config: ActivationDumper, seed: int
) -> np.ndarray:
    """The position of each sample in its text, which has so many tokens."""
    if config.position == "midpoint":
        return lengths // 2
    first = np.minimum(config.min_position, lengths - 1)
    return first + noise.scale(noise.words(seed, _POSITION, region.number, samples), lengths - first)


def other_samples(samples: np.ndarray, region: Region, seed: int) -> np.ndarray:
    """For each sample another one of its region, drawn by the seed."""
    away = 1 + noise.scale(noise.words(seed, _OTHER, region.number, samples), region.samples - 1)
    return (samples + away) % region.samples


class JoinedRows:
    """The rows of several tables, one after the other."""

    def __init__(self, parts: Sequence[SampleRows]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.rows(np.array([index])).items()}

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        """A batch, in the order of the indices."""
        which = np.searchsorted(self._starts, indices, side="right") - 1
        found: dict[str, Tensor] = {}
        for number in np.unique(which):
            here = np.flatnonzero(which == number)
            for name, value in self._parts[number].rows(indices[here] - self._starts[number]).items():
                found.setdefault(name, value.new_empty((len(indices), *value.shape[1:])))[here] = value
        return found

    def origins(self) -> list[Path]:
        """What a resume compares."""
        return [path for part in self._parts for path in part.origins()]


def sample_rows(tokens: TokenRows, config: ActivationDumper, seed: int) -> dict[str, SampleRows]:
    """The samples of both parts of the texts."""
    regions = regions_of(config, tokens.key)
    return {name: SampleRows(tokens.rows, region, config, seed) for name, region in regions.items()}
