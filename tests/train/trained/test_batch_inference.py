"""Batches for a network that is only used."""

from dataclasses import replace

import torch

from samestep.train.trained.batch_inference import in_order, my_batches
from samestep.world.world import World

LENGTHS = [3, 1, 2, 2, 9]


def on(size: int, rows: int, most: int | None = None) -> list[list[list[int]]]:
    """The batches of each of several ranks."""
    info = World.single().rank_info
    worlds = [World(replace(info, rank=rank, size=size), torch.device("cpu")) for rank in range(size)]
    return [my_batches(LENGTHS, rows, world, most) for world in worlds]


def test_batches_do_not_depend_on_the_ranks() -> None:
    assert on(1, rows=2) == [[[1, 2], [3, 0], [4]]]
    assert on(2, rows=2) == [[[1, 2], [4]], [[3, 0], []]]


def test_batches_are_bounded_with_their_padding() -> None:
    assert on(1, rows=9) == [[[1, 2, 3, 0, 4]]]
    assert on(1, rows=9, most=6) == [[[1, 2, 3], [0], [4]]], "3 rows of 2 are 6, and a longer row is alone"
    assert on(1, rows=2, most=6) == [[[1, 2], [3, 0], [4]]]


def test_values_come_back_in_order() -> None:
    assert in_order([[[2, "c"], [0, "a"]], [], [[1, "b"]]]) == ["a", "b", "c"]
