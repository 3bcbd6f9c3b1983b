"""How a recipe names the order of a feed. The bench adds what it knows: global batch, seed, number of rows.

bench.feed(rows, order=Bucketed(lengths))
bench.feed(rows, order=Weighted(weights))
bench.feed(rows, order=Bucketed(lengths, order=Weighted(weights)))
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from samestep.core.errors import UserError
from samestep.data.loading import Rows
from samestep.data.order import BucketedOrder, MixedOrder, Order, Shuffled, WeightedOrder
from samestep.data.streams.stream import stream_of

OrderChoice = Callable[[Order, int], Order]
"""From the order that a feed would have, and the seed, to the one that it gets."""


@dataclass(frozen=True)
class Bucketed:
    """Rows of about the same length share a step, so that little is padded; every row as often as without it.

    Of every `chunk` steps the rows are sorted by length and cut into steps again, in a shuffled order. With `chunk=1` a
    step has the rows that it would have anyhow, and only its micro-batches are of similar length.
    """

    lengths: Sequence[int] | np.ndarray
    """The length of each row, such as its number of tokens."""
    chunk: int = 64
    """So many steps are sorted together: more is less padding, but steps whose rows are more alike."""
    order: OrderChoice | None = None
    """Another choice, whose draws are sorted into buckets."""

    def __call__(self, order: Order, seed: int) -> Order:
        order = self.order(order, seed) if self.order else order
        return BucketedOrder(order, self.lengths, seed, self.chunk)


@dataclass(frozen=True)
class Weighted:
    """Rows in proportion to their weights, which need not add up to anything.

    An epoch has as many draws as there are rows. In each epoch a row is drawn as often as its weight says, rounded up
    or down at random; with equal weights every row comes once, and a row of weight 0 never.
    """

    weights: Sequence[float] | np.ndarray
    """The weight of each row, 0 or more."""

    def __call__(self, order: Order, seed: int) -> Order:
        if isinstance(order, MixedOrder):
            raise UserError("a mixture is drawn by its own weights; leave out Weighted, or give the feed other rows")
        if len(self.weights) != order.size:
            raise UserError(f"Weighted needs one weight per row, not {len(self.weights)} for {order.size} rows")
        return WeightedOrder(self.weights, order.batch, seed)


def choose_order(rows: Rows, choice: Order | OrderChoice | None, batch: int, seed: int) -> Order:
    """The order of a training feed: the one that the rows have of themselves (a mixture by weights, a stream in
    windows), or shuffled, unless another one is chosen."""
    if choice is not None and stream_of(rows):
        raise UserError(
            "a stream that can only be read in order has its own order; leave out order, and say how far rows are "
            "shuffled: samestep.stream(..., buffer=...)"
        )
    if choice is not None and not callable(choice):
        return choice
    own = getattr(rows, "own_order", None)
    usual: Order = own(batch, seed) if callable(own) else Shuffled(len(rows), batch, seed)
    return choice(usual, seed) if choice else usual
