"""Keyed permutations that are computed for any position, without a table in memory.

Position p of turn t goes to `permute(p, t, size, *key)`: an epoch of a billion samples is shuffled with no table and no
pass over earlier positions, so seeking to any step costs the same. A turn is whatever repeats: an epoch, a block.
"""

import math

import numpy as np

from samestep.data import noise

# Up to here a turn is sorted by noise, exactly uniform over all orders; a Feistel network shuffles few elements poorly.
SORTED = 1024
_ROUNDS = 8


def permute(positions: np.ndarray, turns: int | np.ndarray, size: int, *key: int) -> np.ndarray:
    """Each position's place, in [0, size), in the permutation that belongs to its turn and to the key."""
    assert size >= 1, f"cannot permute {size} elements"
    positions, turns = np.broadcast_arrays(np.asarray(positions, np.int64), np.asarray(turns, np.int64))
    assert positions.ndim == 1, f"positions are a flat array, not {positions.shape}"
    if positions.size == 0:
        return np.zeros(0, dtype=np.int64)
    assert 0 <= positions.min() <= positions.max() < size, f"a position lies outside [0, {size})"
    return _sorted(positions, turns, size, key) if size <= SORTED else _walk(positions, turns, size, key)


def _sorted(positions: np.ndarray, turns: np.ndarray, size: int, key: tuple[int, ...]) -> np.ndarray:
    distinct, row = np.unique(turns, return_inverse=True)
    high, low = noise.words(*key, distinct[:, None], np.arange(size)[None, :])
    table = np.argsort((high << 31) | (low >> 1), axis=1, kind="stable")
    return table[row, positions]


def _walk(positions: np.ndarray, turns: np.ndarray, size: int, key: tuple[int, ...]) -> np.ndarray:
    """Permute the smallest near-square grid that holds `size`, again and again until each place is below `size`.

    Following the cycle through the places outside keeps it a permutation of those inside. The grid is at most one row
    too large, so almost nothing is walked twice.
    """
    rows = math.isqrt(size - 1) + 1
    columns = -(-size // rows)
    places = _feistel(positions, turns, rows, columns, key)
    outside = np.flatnonzero(places >= size)
    while outside.size:
        places[outside] = _feistel(places[outside], turns[outside], rows, columns, key)
        outside = outside[places[outside] >= size]
    return places


def _feistel(places: np.ndarray, turns: np.ndarray, rows: int, columns: int, key: tuple[int, ...]) -> np.ndarray:
    """Rotate each column of a grid by a keyed amount, then each row, and so on: a Feistel network of any sides."""
    row, column = np.divmod(places, columns)
    # Most often all are of one turn: a plain integer is hashed once, on its own, instead of once per element.
    turn = int(turns[0]) if (turns == turns[0]).all() else turns
    for r in range(0, _ROUNDS, 2):
        row = (row + noise.scale(noise.words(*key, r, turn, column), rows)) % rows
        column = (column + noise.scale(noise.words(*key, r + 1, turn, row), columns)) % columns
    return row * columns + column
