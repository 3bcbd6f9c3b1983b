"""The order of streams: shards in a keyed order, rows shuffled in windows whose borders move, found at once."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.core.errors import UserError
from samestep.data.order import Reordered, Sequential
from samestep.data.streams.source import ENDLESS
from samestep.data.windowed import WindowedOrder, windows_of


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any),
    st.integers(1, 30),
    st.integers(1, 90),
    st.integers(0, 99),
)
def test_every_row_comes_once_an_epoch_and_not_far_from_its_place(
    sizes: list[int], batch: int, buffer: int, seed: int
) -> None:
    order = WindowedOrder(sizes, batch, seed, buffer)
    for epoch in (0, 3):
        steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
        ids = np.concatenate([order.ids(step) for step in steps])
        assert set(ids[:, 0]) == {epoch} and sorted(ids[:, 1].tolist()) == list(range(order.size))
        fresh = WindowedOrder(sizes, batch, seed, buffer)
        assert np.array_equal(fresh.ids(steps[-1]), order.ids(steps[-1])), "asked for alone"
        if len(sizes) == 1:
            assert np.abs(ids[:, 1] - np.arange(order.size)).max() < max(buffer, 1)
            for step in steps:
                windows = windows_of(Reordered(order, 2, 3, active=lambda: True), step)
                inside = np.concatenate([np.arange(start, stop) for start, stop in windows])
                assert len(set(inside)) == len(inside) and set(order.ids(step)[:, 1]) <= set(inside)
                assert all(stop - start <= min(buffer, order.size) for start, stop in windows)


def test_shards_and_borders_differ_from_epoch_to_epoch() -> None:
    order = WindowedOrder([100] * 50, 100, 1, buffer=10)
    places = order.steps_per_epoch
    first, second = (np.concatenate([order.ids(e * places + s)[:, 1] // 100 for s in range(places)]) for e in (0, 1))
    shards = [list(dict.fromkeys(epoch.tolist())) for epoch in (first, second)]
    assert shards[0] != shards[1] and sorted(shards[0]) == list(range(50)) and shards[0] != list(range(50))
    one = WindowedOrder([1000], 10, 1, buffer=50)
    borders = {tuple(one.windows(epoch * one.steps_per_epoch)[0]) for epoch in range(20)}
    assert len({stop for _, stop in borders}) > 8


def test_rows_of_a_window_are_in_every_order_equally_often() -> None:
    order = WindowedOrder([3], 3, 5, buffer=3)
    seen = [tuple(order.ids(epoch)[:, 1].tolist()) for epoch in range(3000)]
    assert len(set(seen)) == 6 and min(map(seen.count, set(seen))) > 400


@pytest.mark.parametrize("buffer", [1, 1000, 100_000])
def test_any_step_of_a_stream_without_end_is_found_at_once(buffer: int) -> None:
    began = time.process_time()
    order = WindowedOrder([ENDLESS], 64, 0, buffer)
    ids = order.ids(10**9)
    assert len(ids) == 64 and np.abs(ids[:, 1] - 64 * 10**9).max() < 2 * buffer + 64
    assert time.process_time() - began < 5


def test_rows_in_order_have_a_window_of_their_own_each_step() -> None:
    assert windows_of(Sequential(10, 4, epoch=7), 2) == [(8, 10)]
    with pytest.raises(UserError, match="at least 1 row"):
        WindowedOrder([4], 2, 0, buffer=0)
