"""From samples to a batch: stacked, padded, by a function of the recipe; what is no batch is refused in a sentence."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from samestep.core.errors import UserError
from samestep.data.collate import collate_by, pad_rows, stack_rows
from samestep.data.feed import Feed
from samestep.data.order import BucketedOrder, Shuffled
from samestep.world.rank_discovery import RankInfo
from samestep.world.world import World

LENGTHS = [1 + (7 * n) % 5 for n in range(23)]
RAGGED = [{"tokens": list(range(1, length + 1)), "n": length} for length in LENGTHS]


def by_hand(samples: list[Any]) -> dict[str, Tensor]:
    """A recipe's own collate."""
    width = max(len(sample["tokens"]) for sample in samples)
    rows = [sample["tokens"] + [0] * (width - len(sample["tokens"])) for sample in samples]
    return {"tokens": torch.tensor(rows), "n": torch.tensor([sample["n"] for sample in samples])}


def test_lists_numbers_and_arrays_are_stacked() -> None:
    batch = stack_rows(
        [{"a": [1, 2], "b": 3, "c": np.ones(2), "d": 0.5}, {"a": (3, 4), "b": 5, "c": np.ones(2), "d": 1}]
    )
    assert torch.equal(batch["a"], torch.tensor([[1, 2], [3, 4]]))
    assert batch["b"].tolist() == [3, 5] and batch["c"].shape == (2, 2) and batch["d"].tolist() == [0.5, 1.0]


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6), multiple=st.sampled_from([1, 4]))
def test_padding_keeps_every_value(lengths: list[int], multiple: int) -> None:
    samples = [{"t": torch.arange(1, n + 1), "m": torch.ones(n, 2), "n": n} for n in lengths]
    batch = pad_rows(samples, {"t": -100, "m": 0}, multiple)
    width = batch["t"].shape[1]
    assert width % multiple == 0 and max(lengths) <= width < max(lengths) + multiple
    assert batch["m"].shape == (len(lengths), width, 2) and batch["n"].tolist() == lengths
    for row, n in zip(batch["t"].tolist(), lengths):
        assert row == [*range(1, n + 1), *[-100] * (width - n)]


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (3, 0), (8, 0), (2, 1)])
@pytest.mark.parametrize("collate", [by_hand, partial(pad_rows, pad={"tokens": 0})])
def test_a_feed_of_ragged_rows(collate: Any, ranks: int, workers: int) -> None:
    order = BucketedOrder(Shuffled(23, 6, seed=5), LENGTHS, seed=5, chunk=2)
    rows: list[tuple[int, list[int]]] = []
    for rank in range(ranks):
        world = World(RankInfo("test", rank, ranks), torch.device("cpu"))
        feed = Feed(RAGGED, order, world, micro_rows=2, length=4, collate=collate, workers=workers)
        for micros in feed:
            for batch in micros.batches:
                assert batch["tokens"].shape == (len(batch["live"]), max(batch["n"]))
                live = batch["live"].tolist()
                rows += [(int(i), t) for (_, i), t, on in zip(batch["ids"], batch["tokens"].tolist(), live) if on]
    assert sorted(index for index, _ in rows) == list(range(23)), "an epoch: every row once, fillers left out"
    assert all([t for t in tokens if t] == RAGGED[index]["tokens"] for index, tokens in rows)


class Both:
    """Gives batches and samples, and torch's own way to get several samples."""

    asked: list[str]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, int]:
        raise AssertionError("samples come several at a time")

    def __getitems__(self, indices: list[int]) -> list[dict[str, int]]:
        self.asked.append("samples")
        return [{"x": index} for index in indices]

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        self.asked.append("rows")
        return {"x": torch.as_tensor(indices)}


def test_a_collate_gets_samples_and_else_batches_are_read() -> None:
    rows = Both()
    for collate, asked in ((None, "rows"), (stack_rows, "samples")):
        rows.asked = []
        feed = Feed(rows, Shuffled(4, 4, seed=5), World.single(), micro_rows=4, length=1, collate=collate)
        batch = feed[0].batches[0]
        assert torch.equal(batch["x"], batch["ids"][:, 1]) and set(rows.asked) == {asked}


@pytest.mark.parametrize(
    ("rows", "collate", "sentence"),
    [
        ([1, 2], None, "a sample must be a dict of tensors, but the data gave a int; return a dict"),
        ([(1, 2)] * 2, None, "the data gave a tuple; .* or give collate="),
        (
            [{"x": "text", "y": {}, "z": 1, "w": [["a"]]}] * 2,
            None,
            r"no numbers: 'x' \(str\), 'y' \(dict\), 'w' \(list\)",
        ),
        ([{"x": [1]}, {"x": [1, 2]}], None, r"different shapes, such as \(1,\) and \(2,\); .* pad=\{'x': 0\}"),
        ([{"x": 1}, {"x": None}], None, "'x' is None, which is no tensor of numbers"),
        ([{"x": [1, [2]]}] * 2, None, "which is no tensor of numbers"),
        ([{"x": 1}, {"y": 1}], None, "must have the same names, but one has '.' and one '.'"),
        ([{"ids": 1}] * 2, None, "'ids', a name that the feed itself gives"),
        ([{"x": [1]}] * 2, partial(pad_rows, pad={"z": 0}), "pad names 'z', but a sample has 'x'"),
        ([{"x": 1}] * 2, partial(pad_rows, pad={"x": 0}), "'x' cannot be padded"),
        ([1, 2], lambda samples: torch.tensor(samples), "a batch must be a dict of tensors, but collate gave a Tensor"),
        ([1, 2], lambda samples: {"x": samples}, "'x' must be a tensor in a batch, not a list"),
        ([1, 2], lambda samples: {"x": torch.tensor(samples)[None]}, r"shape \(1, 2\) in a batch of 2 rows"),
    ],
)
def test_what_is_no_batch_is_refused(rows: list[Any], collate: Any, sentence: str) -> None:
    feed = Feed(rows, Shuffled(2, 2, seed=5), World.single(), micro_rows=2, length=1, collate=collate)
    with pytest.raises(UserError, match=sentence):
        feed[0]


def test_collate_and_pad_exclude_each_other() -> None:
    with pytest.raises(UserError, match="either collate or pad, not both"):
        collate_by(by_hand, {"tokens": 0})
