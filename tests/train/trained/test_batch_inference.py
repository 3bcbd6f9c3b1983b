"""Batches for a network that is only used."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from samestep.train.trained.batch_inference import compute_rows, in_order, my_batches, say_idle
from samestep.world.world import World
from toys import NOT_SHARDED, Case, in_worlds, on_ranks

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


def test_idle_ranks_are_named_once(capfd: pytest.CaptureFixture[str]) -> None:
    info = World.single().rank_info
    for rank in range(3):
        say_idle(2, World(replace(info, rank=rank, size=3), torch.device("cpu")))
    say_idle(0, World.single())
    assert capfd.readouterr().err.count("2 of 3 ranks have nothing to do; a smaller --batch_size helps") == 1


@in_worlds(NOT_SHARDED)
def values_of_rows(world: World, strategy: str) -> None:
    """In the order of the rows, on every rank, also where some ranks have no batch; which compute all the same."""
    for count, rows in ((5, 2), (5, 9), (1, 1), (7, 1)):
        asked: list[list[int]] = []

        def compute(numbers: list[int], asked: list[list[int]] = asked) -> dict[str, Tensor]:
            asked.append(numbers)
            weight = torch.ones(2, requires_grad=True)
            return {"pair": torch.tensor(numbers)[:, None] * weight, "number_itself": torch.tensor(numbers)}

        found = compute_rows([count - number for number in range(count)], rows, world, compute)
        assert found["pair"].tolist() == [[number, number] for number in range(count)]
        assert found["number_itself"].tolist() == list(range(count)) and "number" not in found
        assert not found["pair"].requires_grad
        calls = [len(each) for each in world.gather(asked)]
        assert len(set(calls)) == 1, "as many calls on every rank"
        assert all(len(numbers) <= rows for numbers in asked)


CASES: list[Case] = [values_of_rows]

test_on_ranks = on_ranks(CASES)
