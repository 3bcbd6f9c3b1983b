"""Another order of rows changes nothing but the order: every micro-batch keeps its rows and its size."""

import numpy as np
import pytest

from samestep.data.order import Reordered, Sequential, micro_batches


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(("batch", "rows"), [(7, 3), (10, 5), (12, 4), (1, 1), (5, 8)])
def test_micro_batches_keep_their_rows(batch: int, rows: int, ranks: int) -> None:
    order = Sequential(40, batch)
    other = Reordered(order, ranks, rows, active=lambda: True)
    for step in range(order.steps_per_epoch):
        ids = order.ids(step)
        for rank in range(ranks):
            spans = micro_batches(len(ids), rank, ranks, rows)
            ours, theirs = ([each[start:stop, 1].tolist() for start, stop in spans] for each in (ids, other.ids(step)))
            assert [len(rows) for rows in ours] == [len(rows) for rows in theirs]
            assert sorted(map(sorted, ours)) == sorted(map(sorted, theirs))


def test_rows_are_reversed_and_equal_micro_batches_change_places() -> None:
    other = Reordered(Sequential(14, 7), 1, 3, active=lambda: True)
    assert other.ids(0)[:, 1].tolist() == [3, 2, 1, 0, 6, 5, 4]  # 2, 2 and 3 rows
    assert other.ids(1)[:, 1].tolist() == [10, 9, 8, 7, 13, 12, 11]
    assert (other.size, other.batch, other.steps_per_epoch) == (14, 7, 2)


def test_rows_that_belong_together_stay_together() -> None:
    other = Reordered(Sequential(14, 7), 1, 6, active=lambda: True, together=2)
    assert other.ids(0)[:, 1].tolist() == [5, 4, 3, 2, 1, 0, 6]


def test_the_order_stays_while_inactive() -> None:
    order = Sequential(14, 7)
    assert np.array_equal(Reordered(order, 1, 3, active=lambda: False).ids(1), order.ids(1))
