"""A recipe names an order; batch, seed and size are added by the bench."""

import numpy as np
import pytest

from samestep.core.errors import UserError
from samestep.data.mixed import Mixed
from samestep.data.order import BucketedOrder, MixedOrder, Order, Sequential, Shuffled, WeightedOrder
from samestep.data.order_choice import Bucketed, OrderChoice, Weighted, choose_order

ROWS = [{"x": n} for n in range(30)]
MIXED = Mixed([ROWS[:20], ROWS[20:]], weights=[1, 3])
LENGTHS = [1 + n % 7 for n in range(30)]


def same(one: Order, other: Order) -> bool:
    return all(np.array_equal(one.ids(step), other.ids(step)) for step in range(20))


@pytest.mark.parametrize(
    ("rows", "choice", "expected"),
    [
        (ROWS, None, Shuffled(30, 4, 7)),
        (ROWS, Sequential(30, 4), Sequential(30, 4)),
        (ROWS, Weighted(LENGTHS), WeightedOrder(LENGTHS, 4, 7)),
        (ROWS, Bucketed(LENGTHS, chunk=2), BucketedOrder(Shuffled(30, 4, 7), LENGTHS, 7, 2)),
        (ROWS, Bucketed(LENGTHS, order=Weighted(LENGTHS)), BucketedOrder(WeightedOrder(LENGTHS, 4, 7), LENGTHS, 7)),
        (MIXED, None, MixedOrder([20, 10], [1, 3], 4, 7)),
        (MIXED, Bucketed(LENGTHS), BucketedOrder(MixedOrder([20, 10], [1, 3], 4, 7), LENGTHS, 7)),
    ],
)
def test_the_bench_adds_what_it_knows(rows: object, choice: OrderChoice | Order | None, expected: Order) -> None:
    assert same(choose_order(rows, choice, 4, 7), expected)  # type: ignore[arg-type]


def test_one_chunk_sorts_only_inside_a_step() -> None:
    order, shuffled = choose_order(ROWS, Bucketed(LENGTHS, chunk=1), 8, 7), Shuffled(30, 8, 7)
    for step in range(8):
        ids, lengths = order.ids(step), [LENGTHS[index] for _, index in order.ids(step)]
        assert sorted(map(tuple, ids)) == sorted(map(tuple, shuffled.ids(step))) and lengths == sorted(lengths)


@pytest.mark.parametrize(
    ("rows", "choice", "sentence"),
    [
        (ROWS, Weighted([1, 2]), "Weighted needs one weight per row, not 2 for 30 rows"),
        (ROWS, Bucketed([1, 2]), "a bucketed order needs one length per sample, not 2 for 30"),
        (MIXED, Weighted(LENGTHS), "a mixture is drawn by its own weights"),
    ],
)
def test_what_does_not_fit_the_rows_is_refused(rows: object, choice: OrderChoice, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        choose_order(rows, choice, 4, 7)  # type: ignore[arg-type]
