"""Which pairs are for validation: a function of the seed and of what the records say, not of their order."""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal, TypeVar

from samestep import UserError
from samestep.recipes.dpo.protein_records import ProteinPair

By = Literal["pair", "structure"]
Item = TypeVar("Item")


def split_pairs(
    pairs: Sequence[ProteinPair], fraction: float, seed: int, by: By
) -> tuple[list[ProteinPair], list[ProteinPair]]:
    """Pairs for training and for validation, each in the order of the file. Equal records stay together, and by
    structure so do all records whose structure files have the same content."""
    groups = [pair.identity() if by == "pair" else pair.design.structure.sha256 for pair in pairs]
    return split_groups(pairs, groups, fraction, seed)


def split_groups(
    items: Sequence[Item], groups: Sequence[str], fraction: float, seed: int
) -> tuple[list[Item], list[Item]]:
    """Items for training and for validation, each in their order; those of one group stay together."""
    chosen = validation_groups(groups, fraction, seed)
    parts: tuple[list[Item], list[Item]] = ([], [])
    for item, group in zip(items, groups, strict=True):
        parts[group in chosen].append(item)
    return parts


def validation_groups(groups: Sequence[str], fraction: float, seed: int) -> set[str]:
    """The groups that are for validation, given the group of each record.

    In an order by hash, a group is taken if that brings their number of records closer to the fraction, rounded up. If
    none does, the smallest group is taken. One group at least is left for training.
    """
    sizes = Counter(groups)
    if len(sizes) < 2:
        raise UserError(
            f"Give records that differ, or name a file for validation (val_data): the {len(groups)} here cannot be "
            "split in two."
        )
    room = min(math.ceil(round(len(groups) * fraction, 9)), len(groups) - 1)  # rounded: 100 * 0.07 is above 7
    in_order = sorted(sizes, key=lambda group: hashlib.sha256(f"{seed} {group}".encode()).digest())
    chosen: set[str] = set()
    for group in in_order:
        if sizes[group] < 2 * room and len(chosen) < len(sizes) - 1:
            chosen.add(group)
            room -= sizes[group]
    return chosen or {min(in_order, key=lambda group: sizes[group])}
