"""An order is a function of the step: every sample once per epoch, the same for any number of ranks, from any start."""

import math
import pickle
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.core.errors import UserError
from samestep.data.order import (
    BLOCK,
    VALIDATION_EPOCH,
    BucketedOrder,
    MixedOrder,
    Order,
    Sequential,
    Shuffled,
    WeightedOrder,
    split,
)

LENGTHS = np.random.default_rng(0).integers(1, 500, 3000)


def epoch_of(order: Order, epoch: int) -> list[np.ndarray]:
    first = epoch * order.steps_per_epoch
    return [order.ids(first + k) for k in range(order.steps_per_epoch)]


def bucketed(lengths: Sequence[int] | np.ndarray, batch: int, seed: int, chunk: int = 64) -> BucketedOrder:
    return BucketedOrder(Shuffled(len(lengths), batch, seed), lengths, seed, chunk)


def build(kind: str, size: int, batch: int) -> Order:
    if kind == "sequential":
        return Sequential(size, batch)
    if kind == "shuffled":
        return Shuffled(size, batch, seed=7)
    if kind == "bucketed":
        return bucketed(np.resize(LENGTHS, size), batch, seed=7, chunk=3)
    return WeightedOrder(np.full(size, 0.1), batch, seed=7)


KINDS = ["sequential", "shuffled", "bucketed", "equal weights"]


# --- what all orders with a common epoch share ---


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(size=st.integers(1, 1500), batch=st.integers(1, 400), world=st.integers(1, 17), epoch=st.integers(0, 5))
def test_every_index_comes_once_per_epoch(kind: str, size: int, batch: int, world: int, epoch: int) -> None:
    order = build(kind, size, max(batch, size // 40))
    steps = epoch_of(order, epoch)
    assert len(steps) == order.steps_per_epoch == math.ceil(size / order.batch)
    assert [len(ids) for ids in steps[:-1]] == [order.batch] * (len(steps) - 1)
    shared = [split(ids, rank, world) for ids in steps for rank in range(world)]
    together = np.concatenate(shared)
    assert together.dtype == np.int64
    assert set(together[:, 0].tolist()) == {epoch}
    assert np.array_equal(np.sort(together[:, 1]), np.arange(size))


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_steps_can_be_computed_in_any_order(kind: str) -> None:
    def fresh() -> Order:
        return MixedOrder([70, 30], [1, 1], 16, seed=7) if kind == "mixed" else build(kind, 300, 16)

    forwards, order = fresh(), fresh()
    expected = [forwards.ids(step) for step in range(60)]
    for step in np.random.default_rng(1).permutation(60).tolist():
        assert np.array_equal(order.ids(step), expected[step])
        assert np.array_equal(pickle.loads(pickle.dumps(order)).ids(step), expected[step])


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_what_a_caller_does_to_a_batch_stays_with_the_caller(kind: str) -> None:
    order = MixedOrder([70, 30], [1, 1], 16, seed=7) if kind == "mixed" else build(kind, 300, 16)
    before = order.ids(3).copy()
    order.ids(3)[:] = -1
    assert np.array_equal(order.ids(3), before)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Shuffled(10, 0, 7), "batch size must be at least 1, not 0"),
        (lambda: Sequential(10, -2), "batch size must be at least 1, not -2"),
        (lambda: Shuffled(0, 4, 7), "a dataset must have at least 1 sample, not 0: check its path and filters"),
        (lambda: bucketed([], 4, 7), "a dataset must have at least 1 sample, not 0: check its path and filters"),
        (lambda: bucketed([1, 2], 0, 7), "batch size must be at least 1, not 0"),
        (lambda: bucketed([1, 2], 1, 7, chunk=0), "a bucketed order needs chunks of at least 1 batch, not 0"),
        (lambda: bucketed([1, -2], 1, 7), "lengths must be .* whole numbers"),
        (lambda: bucketed([1.5], 1, 7), "lengths must be .* whole numbers"),  # type: ignore[list-item]
        (lambda: bucketed([2**31], 1, 7), "lengths must be .* whole numbers"),
        (lambda: BucketedOrder(Shuffled(3, 1, 7), [1, 2], 7), "needs one length per sample, not 2 for 3"),
        (lambda: WeightedOrder([], 4, 7), "a dataset must have at least 1 sample, not 0"),
        (lambda: WeightedOrder([1, -1], 4, 7), "weights must be a flat list of numbers of at least 0"),
        (lambda: WeightedOrder([1, math.inf], 4, 7), "weights must be a flat list of numbers of at least 0"),
        (lambda: WeightedOrder([0, 0], 4, 7), "not all of them 0"),
        (lambda: MixedOrder([10, 0], [1, 1], 4, 7), "a dataset must have at least 1 sample, not 0"),
        (lambda: MixedOrder([10, 10], [1, 1], 0, 7), "batch size must be at least 1, not 0"),
        (lambda: MixedOrder([10], [1, 1], 4, 7), "one weight per source, not 2 for 1"),
        (lambda: MixedOrder([], [], 4, 7), "one weight per source, not 0 for 0"),
        (lambda: MixedOrder([10, 10], [1, -1], 4, 7), "weights must be numbers of at least 0"),
        (lambda: MixedOrder([10, 10], [1, math.nan], 4, 7), "weights must be numbers of at least 0"),
        (lambda: MixedOrder([10, 10], [0, 0], 4, 7), "not all of them 0"),
        (lambda: MixedOrder([10, 10], [1, 1e-4], 4, 7), "source 1 .* raise its weight or set it to 0"),
    ],
)
def test_invalid_values_are_refused_in_one_sentence(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make()


# --- sequential ---


def test_sequential_is_in_order() -> None:
    order = Sequential(5, 2)
    assert order.ids(0).tolist() == [[0, 0], [0, 1]]
    assert order.ids(2).tolist() == [[0, 4]]
    assert order.ids(3).tolist() == [[1, 0], [1, 1]]


def test_sequential_can_fix_its_epoch() -> None:
    order = Sequential(5, 2, epoch=VALIDATION_EPOCH)
    assert np.array_equal(order.ids(1), order.ids(4))
    assert set(order.ids(4)[:, 0].tolist()) == {VALIDATION_EPOCH}


# --- shuffled ---


def test_shuffled_differs_in_every_epoch_and_by_every_seed() -> None:
    def run(seed: int, epoch: int) -> list[int]:
        return np.concatenate(epoch_of(Shuffled(2000, 64, seed), epoch))[:, 1].tolist()

    orders = [run(7, 0), run(7, 1), run(7, 2), run(8, 0), list(range(2000))]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert sum(a == b for a, b in zip(one, other, strict=True)) < 10


def test_shuffled_does_not_depend_on_the_batch_size() -> None:
    small, large = Shuffled(500, 7, seed=7), Shuffled(500, 100, seed=7)
    assert np.array_equal(np.concatenate(epoch_of(small, 2)), np.concatenate(epoch_of(large, 2)))


def test_a_far_step_costs_no_memory() -> None:
    order = Shuffled(10**9 + 7, 256, seed=7)
    near = order.ids(0)
    tracemalloc.start()
    far = order.ids(10**9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    assert set(far[:, 0].tolist()) == {10**9 // order.steps_per_epoch}
    assert len(set(far[:, 1].tolist())) == len(near) == 256
    assert len(order.ids(order.steps_per_epoch - 1)) == (10**9 + 7) % 256


# --- bucketed ---


def padding(order: Order, lengths: np.ndarray) -> float:
    """The share of a padded epoch that is padding."""
    steps = [lengths[ids[:, 1]] for ids in epoch_of(order, 1)]
    padded = sum(int(held.max()) * len(held) for held in steps)
    return 1 - sum(int(held.sum()) for held in steps) / padded


def test_bucketed_pads_far_less() -> None:
    wasted = padding(Shuffled(len(LENGTHS), 16, seed=7), LENGTHS)
    assert wasted > 0.4
    assert padding(bucketed(LENGTHS, 16, seed=7), LENGTHS) < wasted / 8


def test_bucketed_does_not_run_from_short_to_long() -> None:
    order = bucketed(LENGTHS, 16, seed=7, chunk=40)
    means = np.array([LENGTHS[ids[:, 1]].mean() for ids in epoch_of(order, 0)])
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 4.5 / math.sqrt(len(means))
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 4.5 / math.sqrt(len(means))


def test_the_smaller_batch_is_last_and_not_always_the_longest() -> None:
    order = bucketed(LENGTHS[:1000], 16, seed=7)
    last = [LENGTHS[epoch_of(order, epoch)[-1][:, 1]] for epoch in range(40)]
    assert {len(held) for held in last} == {1000 % 16}
    means = np.array([held.mean() for held in last])
    assert means.min() < 100
    assert means.max() > 400


def test_bucketed_batches_differ_between_epochs() -> None:
    order = bucketed(LENGTHS, 16, seed=7, chunk=8)
    batches = [{frozenset(ids[:, 1].tolist()) for ids in epoch_of(order, epoch)} for epoch in (0, 1)]
    assert not batches[0] & batches[1]


def test_bucketed_breaks_ties_by_position() -> None:
    constant = bucketed(np.full(64, 9, dtype=np.int32), 8, seed=7, chunk=8)
    shuffled = {tuple(ids[:, 1].tolist()) for ids in epoch_of(Shuffled(64, 8, seed=7), 0)}
    assert {tuple(ids[:, 1].tolist()) for ids in epoch_of(constant, 0)} == shuffled


def test_bucketed_holds_the_lengths_it_was_given() -> None:
    lengths = np.arange(1, 11, dtype=np.int32)
    assert np.shares_memory(bucketed(lengths, 2, seed=7).lengths, lengths)


def test_bucketed_keeps_the_draws_of_another_order() -> None:
    mixed = MixedOrder([700, 300], [1, 2], 16, seed=7)
    order = BucketedOrder(mixed, LENGTHS[:1000], seed=7, chunk=8)
    assert (order.size, order.batch, order.steps_per_epoch) == (1000, 16, mixed.steps_per_epoch)
    for chunk in (range(8), range(8, 16), range(56, 63), range(63, 71)):  # an epoch has 63 steps
        drawn, again = (sorted(map(tuple, np.concatenate([o.ids(s) for s in chunk]))) for o in (mixed, order))
        assert drawn == again
    held = LENGTHS[order.ids(5)[:, 1]]
    assert np.array_equal(held, np.sort(held)), "also sorted inside a batch, for its micro-batches"


# --- weighted ---


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    weights=st.lists(st.floats(0, 20, allow_subnormal=False), min_size=1, max_size=60).filter(lambda w: sum(w) > 1e-3),
    batch=st.integers(1, 70),
    epoch=st.integers(0, 9),
    world=st.integers(1, 9),
)
def test_every_epoch_draws_by_weight(weights: list[float], batch: int, epoch: int, world: int) -> None:
    order = WeightedOrder(weights, batch, seed=7)
    steps = epoch_of(order, epoch)
    assert [len(ids) for ids in steps[:-1]] == [batch] * (len(steps) - 1)
    drawn = np.concatenate([split(ids, rank, world) for ids in steps for rank in range(world)])
    assert len(drawn) == len(weights)
    expected = np.array(weights) / sum(weights) * len(weights)
    counts = np.bincount(drawn[:, 1], minlength=len(weights))
    assert (np.abs(counts - expected) < 1 + 1e-5).all(), "rounded up or down"
    assert (counts[np.array(weights) == 0] == 0).all()


def test_weighted_draws_have_the_right_mean_and_are_told_apart() -> None:
    weights = np.array([3.0, 1.0, 0.25, 0.0, 0.75] * 4)
    order = WeightedOrder(weights, 7, seed=7)
    drawn = np.concatenate([ids for epoch in range(400) for ids in epoch_of(order, epoch)])
    assert np.bincount(drawn[:, 1], minlength=20) == pytest.approx(weights * 400, abs=4.5 * math.sqrt(400 * 0.25))
    assert len(np.unique(drawn, axis=0)) == len(drawn), "no two draws have the same noise"


def test_weighted_seeks_far_without_a_pass() -> None:
    order, other = (WeightedOrder(LENGTHS, 64, seed=7) for _ in range(2))
    far = order.ids(10**9)
    assert np.array_equal(far, other.ids(10**9))
    assert not np.array_equal(far[:, 1], WeightedOrder(LENGTHS, 64, seed=8).ids(10**9)[:, 1])


# --- mixed ---


def source_of(order: MixedOrder, ids: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum(order.sizes), ids[:, 1], side="right")


@pytest.mark.parametrize(
    ("weights", "counts"),
    [([1, 1], [512, 512]), ([1, 2], [341, 683]), ([0.7, 0.2, 0.1], [717, 205, 102]), ([0, 5], [0, 1024])],
)
def test_weights_become_whole_slots(weights: list[float], counts: list[int]) -> None:
    order = MixedOrder([50] * len(weights), weights, BLOCK, seed=7)
    assert order.counts.tolist() == counts
    for step in (0, 1, 12345):
        assert np.bincount(source_of(order, order.ids(step)), minlength=len(weights)).tolist() == counts


@settings(max_examples=40, deadline=None, derandomize=True)
@given(weights=st.lists(st.floats(0.02, 50), min_size=1, max_size=12))
def test_slots_are_the_nearest_whole_numbers(weights: list[float]) -> None:
    try:
        counts = MixedOrder([10] * len(weights), weights, 4, seed=7).counts
    except UserError:
        assert min(weights) / sum(weights) < 1 / BLOCK
        return
    assert counts.sum() == BLOCK
    assert np.abs(counts - np.array(weights) / sum(weights) * BLOCK).max() < 1


def test_each_source_runs_through_its_own_epochs() -> None:
    order = MixedOrder([40, 1, 700], [3, 0.1, 1], 48, seed=7)
    assert (order.size, order.steps_per_epoch) == (741, 16)
    ids = np.concatenate([order.ids(step) for step in range(90)])
    sources = source_of(order, ids)
    for source, (offset, size) in enumerate(((0, 40), (40, 1), (41, 700))):
        mine = ids[sources == source]
        whole = len(mine) // size
        assert whole >= 1
        # In the very order of draws: epoch after epoch, each index once in each.
        assert np.array_equal(mine[:, 0], np.arange(len(mine)) // size)
        for epoch in range(whole):
            drawn = mine[mine[:, 0] == epoch, 1]
            assert np.array_equal(np.sort(drawn), np.arange(offset, offset + size))


def test_no_pair_is_ever_drawn_twice() -> None:
    order = MixedOrder([40, 1, 700], [3, 0.1, 1], 50, seed=7)
    seen = Counter(tuple(pair) for step in range(120) for pair in order.ids(step).tolist())
    assert set(seen.values()) == {1}


def test_mixed_does_not_depend_on_the_batch_size() -> None:
    small, large = MixedOrder([40, 60], [1, 2], 50, seed=7), MixedOrder([40, 60], [1, 2], 3000, seed=7)
    assert np.array_equal(np.concatenate([small.ids(step) for step in range(60)]), large.ids(0))


def test_mixed_shuffles_slots_and_sources() -> None:
    order = MixedOrder([5000, 5000], [1, 1], BLOCK, seed=7)
    first, second = (source_of(order, order.ids(step)) for step in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / math.sqrt(BLOCK)
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 4.5 / math.sqrt(BLOCK)
    ids = order.ids(0)
    halves = [ids[first == 0][:, 1], ids[first == 1][:, 1] - 5000]
    assert not np.array_equal(*halves)


def test_mixed_seeks_far_without_memory() -> None:
    order = MixedOrder([10**9, 10**6], [2, 1], 256, seed=7)
    order.ids(0)
    tracemalloc.start()
    far = order.ids(10**9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    assert far[:, 0].max() > 10**4
