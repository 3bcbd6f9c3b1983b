"""A global batch is divided among ranks and micro-batches: each row once, in equal counts, none too large."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.core.errors import UserError
from samestep.data.order import micro_batches, share_bounds, split


@settings(max_examples=300, deadline=None, derandomize=True)
@given(n=st.integers(0, 3000), world=st.integers(1, 17), rows=st.integers(1, 300))
def test_micros_tile_the_batch_once_in_equal_counts(n: int, world: int, rows: int) -> None:
    by_rank = [micro_batches(n, rank, world, rows) for rank in range(world)]
    assert len({len(pieces) for pieces in by_rank}) == 1
    assert len(by_rank[0]) == max(1, math.ceil(math.ceil(n / world) / rows))
    pieces = [piece for mine in by_rank for piece in mine]
    assert all(0 <= stop - start <= rows for start, stop in pieces)
    assert [index for start, stop in pieces for index in range(start, stop)] == list(range(n))
    for mine in by_rank:
        sizes = [stop - start for start, stop in mine]
        assert max(sizes) - min(sizes) <= 1


@settings(max_examples=100, deadline=None, derandomize=True)
@given(n=st.integers(0, 500), world=st.integers(1, 17))
def test_split_and_micros_agree(n: int, world: int) -> None:
    ids = np.arange(2 * n).reshape(n, 2)
    shares = [split(ids, rank, world) for rank in range(world)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert np.array_equal(np.concatenate(shares), ids)
    for rank, share in enumerate(shares):
        pieces = micro_batches(n, rank, world, rows=3)
        assert np.array_equal(ids[pieces[0][0] : pieces[-1][1]], share)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(n=st.integers(1, 500), world=st.integers(1, 17), rows=st.integers(1, 60), together=st.integers(1, 20))
def test_rows_that_belong_together_are_not_split(n: int, world: int, rows: int, together: int) -> None:
    if rows < together:
        with pytest.raises(UserError, match=f"cannot hold the {together} rows that belong together; set batch_size to"):
            micro_batches(n, 0, world, rows, together)
        return
    by_rank = [micro_batches(n, rank, world, rows, together) for rank in range(world)]
    assert len({len(pieces) for pieces in by_rank}) == 1
    pieces = [piece for mine in by_rank for piece in mine]
    assert all(0 <= stop - start <= rows for start, stop in pieces)
    assert all(stop % together == 0 or stop == n for _, stop in pieces)
    assert [index for start, stop in pieces for index in range(start, stop)] == list(range(n))
    assert share_bounds(n, world, together) == [*(mine[0][0] for mine in by_rank), n]


def test_a_micro_batch_without_rows_is_refused() -> None:
    with pytest.raises(UserError, match="a micro-batch must have at least 1 row, not 0"):
        micro_batches(10, 0, 1, 0)
