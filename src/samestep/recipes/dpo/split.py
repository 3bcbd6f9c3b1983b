"""Which pairs are for validation: decided by the seed and the records alone, so every rank decides alike."""

import math
from collections.abc import Hashable, Sequence

import numpy as np

from samestep import UserError, noise
from samestep.data.permutation import permute

_SPLIT = noise.purpose("dpo/split")


def split(groups: Sequence[Hashable], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """The numbers of the rows for training and for validation; rows of one group stay together.

    A share of `fraction` of the groups is for validation, rounded up, but at least one is for training.
    """
    numbers: dict[Hashable, int] = {}
    group_of = [numbers.setdefault(group, len(numbers)) for group in groups]
    if len(numbers) < 2:
        raise UserError(
            f"Give at least 2 pairs that may be split, or a file for validation (val_data); there is {len(numbers)}."
        )
    held_out = min(math.ceil(len(numbers) * fraction), len(numbers) - 1)
    places = permute(np.arange(len(numbers)), 0, len(numbers), seed, _SPLIT)
    train = [row for row, group in enumerate(group_of) if places[group] >= held_out]
    return train, [row for row, group in enumerate(group_of) if places[group] < held_out]
