"""The longest row of a feed in place of its steps, and another size of its micro-batches."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from samestep.data import longest_row
from samestep.data.feed import Feed
from samestep.data.order import BucketedOrder, Shuffled
from samestep.data.streams.stream import stream
from samestep.world.world import World

LENGTHS = np.random.default_rng(3).integers(1, 9, 40)
LENGTHS[17] = 12


class Texts:
    """Rows of these lengths."""

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"tokens": torch.full((int(LENGTHS[index]),), index)}

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (self[index] for index in range(len(self)))


def padded(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    tokens = [row["tokens"] for row in rows]
    return {"tokens": torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)}


def feed_of(order: Shuffled | BucketedOrder, workers: int = 0) -> Feed:
    return Feed(Texts(), order, World.single(), micro_rows=4, length=9, collate=padded, workers=workers)


@pytest.fixture(autouse=True)
def _long_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are read, however slow the machine is just now."""
    monkeypatch.setattr(longest_row, "LOOK_SECONDS", 600.0)


def test_every_step_is_the_longest_row_and_then_the_feed_is_as_before() -> None:
    shuffled = Shuffled(40, 10, seed=1)
    for feed in (feed_of(shuffled), feed_of(BucketedOrder(shuffled, LENGTHS, seed=1)), feed_of(shuffled, workers=1)):
        before = [batch["tokens"].tolist() for batch in feed[3].batches]
        with feed.one_row():
            for step in (0, 7):
                (batch,) = feed[step].batches
                assert batch["tokens"].tolist() == [[17] * 12] and feed[step].weights == {"rows": 1.0}
        assert [batch["tokens"].tolist() for batch in feed[3].batches] == before


def test_rows_that_are_kept_together_come_as_copies() -> None:
    feed = feed_of(Shuffled(40, 10, seed=1))
    feed.keep_together(2)
    with feed.one_row():
        assert feed[0].batches[0]["tokens"].tolist() == [[17] * 12] * 2 and feed[0].spans == [(0, 2)]
    assert [stop - start for start, stop in feed[0].spans] == [2, 4, 4]


def test_of_a_stream_it_is_one_of_the_first_and_its_place_stays() -> None:
    rows = stream(Texts().__iter__, rows=40, buffer=8)
    for workers in (0, 1):
        order = rows.own_order(10, seed=1)
        feed = Feed(rows, order, World.single(), micro_rows=4, length=4, collate=padded, workers=workers)
        before, place = [batch["tokens"].tolist() for batch in feed[1].batches], feed.place
        assert place is not None and place.now is not None
        was = dict(place.now)
        with feed.one_row():
            assert feed[1].batches[0]["tokens"].shape == (1, LENGTHS[:16].max())
        assert place.now == was and [batch["tokens"].tolist() for batch in feed[1].batches] == before


def test_a_feed_is_cut_anew() -> None:
    for workers in (0, 1):
        feed = feed_of(Shuffled(40, 10, seed=1), workers)
        whole = [len(batch["live"]) for batch in feed[0].batches]
        feed.cut_into(5)
        assert whole == [3, 3, 4] and [len(batch["live"]) for batch in feed[1].batches] == [5, 5]
