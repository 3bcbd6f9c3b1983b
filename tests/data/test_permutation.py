"""A keyed permutation hits every place once, is a fair shuffle, and costs the same anywhere in its range."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from samestep.data import permutation
from samestep.data.permutation import SORTED, permute


def whole(size: int, turn: int, *key: int) -> np.ndarray:
    return permute(np.arange(size), turn, size, *key)


def test_the_permutation_never_changes() -> None:
    # A resumed run relies on these: were they to change, it would see other samples.
    assert whole(8, 0, 7).tolist() == [0, 3, 4, 2, 1, 7, 5, 6]
    assert permute(np.arange(4), 3, 10**6, 7).tolist() == [726701, 538762, 321602, 765720]
    assert permute(np.array([0, 2**40 - 1]), 3, 2**40, 7).tolist() == [212550916474, 816698741687]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(size=st.integers(1, 5000), turn=st.integers(-3, 2**40), seed=st.integers(-(2**63), 2**63 - 1))
def test_every_place_is_hit_once(size: int, turn: int, seed: int) -> None:
    assert np.array_equal(np.sort(whole(size, turn, seed)), np.arange(size))


@pytest.mark.parametrize("size", [SORTED - 1, SORTED, SORTED + 1, 33 * 33, 33 * 33 + 1, 2**16, 2**16 + 1, 199_999])
def test_every_place_is_hit_once_at_the_edges(size: int) -> None:
    assert np.array_equal(np.sort(whole(size, 5, 7)), np.arange(size))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(size=st.integers(SORTED + 1, 2**40), data=st.data())
def test_large_ranges_stay_inside_without_collision(size: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size - 500))
    places = permute(np.arange(start, start + 500), 1, size, 7)
    assert len(set(places.tolist())) == 500
    assert 0 <= places.min() <= places.max() < size


@pytest.mark.parametrize("size", [300, 5000])
def test_positions_and_turns_can_be_mixed(size: int) -> None:
    turns, positions = np.array([4, 9, 4, 2, 9]), np.array([0, 3, 299, 17, 3])
    together = permute(positions, turns, size, 7)
    assert together.tolist() == [whole(size, int(t), 7)[p] for t, p in zip(turns, positions, strict=True)]
    assert permute(np.zeros(0, np.int64), 0, size, 7).shape == (0,)


def test_a_position_outside_is_refused() -> None:
    for outside in (-1, 10):
        with pytest.raises(AssertionError, match="outside"):
            permute(np.array([outside]), 0, 10, 7)


# --- a fair shuffle ---


def test_all_orders_of_four_are_equally_likely() -> None:
    orders = np.stack([whole(4, turn, 7) for turn in range(4800)])
    counts = np.unique(orders @ [64, 16, 4, 1], return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("vary", ["turn", "seed"])
@pytest.mark.parametrize("size", [2, 3, 7, 50])
def test_every_place_is_as_likely_at_every_position(size: int, vary: str) -> None:
    trials = 60 * size
    orders = np.stack([whole(size, t, 7) if vary == "turn" else whole(size, 3, t) for t in range(trials)])
    table = np.stack([np.bincount(orders[:, p], minlength=size) for p in range(size)])
    # Rows and columns of the table have fixed sums, which leaves (size - 1)^2 degrees of freedom.
    statistic = ((table - 60) ** 2 / 60).sum() * (size - 1) / size
    assert stats.chi2.sf(statistic, (size - 1) ** 2) > 1e-4


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sorting, so that the network's own quality can be seen at sizes where a bias would show."""
    monkeypatch.setattr(permutation, "SORTED", 0)


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 31, 100, 1024])
def test_the_network_alone_hits_every_place_once(size: int) -> None:
    assert np.array_equal(np.sort(whole(size, 3, 7)), np.arange(size))


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("size", [64, 111])
def test_the_network_alone_is_fair(size: int) -> None:
    turns = np.repeat(np.arange(80 * size), 2)
    for one, other in ((0, 1), (0, size // 2), (size - 2, size - 1)):
        pairs = permute(np.tile([one, other], 80 * size), turns, size, 7).reshape(-1, 2)
        assert stats.chisquare(np.bincount(pairs[:, 0], minlength=size)).pvalue > 1e-4
        steps = (pairs[:, 1] - pairs[:, 0]) % size  # never 0, all other values equally likely
        assert stats.chisquare(np.bincount(steps, minlength=size)[1:]).pvalue > 1e-4


@pytest.mark.parametrize("size", [SORTED + 1, 4096, 100_003])
def test_neighbours_are_unrelated(size: int) -> None:
    order = whole(size, 2, 7)
    n = len(order)
    for lag in (1, 2, math.isqrt(n), math.isqrt(n - 1) + 1):
        assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < 4.5 / math.sqrt(n)
        steps = (order[lag:] - order[:-lag]) % size
        assert stats.chisquare(np.bincount(steps * 32 // size, minlength=32)).pvalue > 1e-4


def test_an_epoch_of_a_random_shuffle_has_one_fixed_point_on_average() -> None:
    fixed = sum(int((whole(2000, turn, 7) == np.arange(2000)).sum()) for turn in range(100))
    assert abs(fixed - 100) < 4.5 * 10


@pytest.mark.parametrize("size", [1000, 5000])
def test_turns_and_keys_are_unrelated(size: int) -> None:
    base = whole(size, 3, 7)
    for other in (whole(size, 4, 7), whole(size, 3, 8), whole(size, 3, 7, 0)):
        assert abs(np.corrcoef(base, other)[0, 1]) < 4.5 / math.sqrt(size)
        assert (base == other).sum() < 10


def test_seeking_far_needs_no_memory() -> None:
    permute(np.arange(256), 0, 10**6, 7)
    tracemalloc.start()
    permute(np.arange(2**40 - 256, 2**40), 10**6, 2**40, 7)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
