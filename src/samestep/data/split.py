"""Which records are for training, for validation and for a last test.

The content of a record decides, and the seed: neither its place in a file nor the number of files. Records of one group
(equal ones, those of one query, of one structure) are never in two parts.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from samestep.core.errors import UserError

Item = TypeVar("Item")
TRAIN, VALIDATION, TEST = range(3)
PART_NOTES = {
    "test": "the test part, by which nothing was chosen",
    "validation": "the validation part, which chose the best weights, so metrics are a little too good",
}
"""What metrics say of the part of the data that they are measured on."""


class Parts(NamedTuple, Generic[Item]):
    """The items of each part, in their order."""

    train: list[Item]
    validation: list[Item]
    test: list[Item]


def split_records(
    items: Sequence[Item], groups: Sequence[str], *, validation: float, test: float = 0.0, seed: int = 0
) -> Parts[Item]:
    """Items by part, given the group of each, which stays together; `validation` and `test` are shares of all.

    Which part a group (a document, a user) is in follows from its text and `seed`, not from its place:

        parts = split_records(rows, [row["user"] for row in rows], validation=0.1)
        parts.train, parts.validation, parts.test
    """
    parts = Parts[Item]([], [], [])
    for item, part in zip(items, choose_parts(groups, validation, test, seed).tolist(), strict=True):
        parts[part].append(item)
    return parts


def choose_parts(groups: Iterable[str | int], validation: float, test: float, seed: int) -> np.ndarray:
    """The part of each record, given its group.

    In an order by hash, a group is taken if that brings the part's number of records closer to its share, rounded up.
    If none does, the smallest is taken. At least one group is left for training.
    """
    keys = np.fromiter((_key(group, seed) for group in groups), dtype=np.uint64)
    _, group_of, sizes = np.unique(keys, return_inverse=True, return_counts=True)  # in the order of the hashes
    shares = {part: share for part, share in ((VALIDATION, validation), (TEST, test)) if share}
    if len(sizes) <= len(shares):
        raise UserError(
            f"Give records that differ, or a file for validation: the {len(keys)} here cannot be split in "
            f"{len(shares) + 1}."
        )
    part_of = np.full(len(sizes), TRAIN)
    for left, (part, share) in zip(range(len(shares), 0, -1), shares.items()):
        free = np.flatnonzero(part_of == TRAIN)
        part_of[_taken(free, sizes, share, len(keys), most=len(free) - left)] = part
    return part_of[group_of.ravel()]


def _taken(free: np.ndarray, sizes: np.ndarray, share: float, records: int, most: int) -> list[int]:
    """The groups of a part, at most so many."""
    room = min(math.ceil(round(records * share, 9)), records - 1)  # rounded: 100 * 0.07 is above 7
    chosen: list[int] = []
    for group in free.tolist():
        if room <= 0 or len(chosen) == most:
            break
        if sizes[group] < 2 * room:
            chosen.append(group)
            room -= int(sizes[group])
    return chosen or [min(free.tolist(), key=lambda group: sizes[group])]


def _key(group: str | int, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {group}".encode("utf-8", "surrogatepass")).digest()[:8], "big")
