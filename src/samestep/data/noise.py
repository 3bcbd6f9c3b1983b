"""Random draws as a function of integers, not of a generator's state.

A draw is keyed by what it is for, for example `(seed, MASK, epoch, index, position)`, and by nothing else: not by the
rank, the batch it sits in, the device, or what was drawn before. So a run has the same noise at any number of ranks
and after any resume, with nothing to save.

    MASK = noise.purpose("mask")
    masked = noise.below(0.15, seed, MASK, epoch[:, None], index[:, None], position[None, :])

How it works: a state of two 32-bit words takes in the key, one component after the other, and is stirred after each
by rounds of a keyless permutation (multiply one word, fold the high half of the product into the other, swap; the
idea of the Philox generators). Being a permutation, it never maps two values of one component to the same state.
All words live in int64 and the multipliers have 31 bits, so no product reaches 2^63: nothing relies on overflow and
bits agree on CPU and GPU, eager and compiled. The same lines serve Python integers, numpy arrays and torch tensors, so
integers at the front of a key are folded on the host and cost the device nothing.

Inside `torch.compile`, pass components that change from call to call as tensors: a Python integer is a constant there,
and a new value means a new compilation.
"""

import hashlib
import operator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from samestep.core.errors import UserError

Key: TypeAlias = int | Tensor
"""One component of a key: all 64 bits of a signed integer count. Tensors broadcast against each other."""

WORD = 0xFFFFFFFF
_START: tuple[Any, Any] = (0x3C6EF372, 0x54FF53A5)  # any two words; not 0, which stirring would leave as it is
# Odd and below 2^31: the golden ratio's and the square root of three's fractional parts.
_MULTIPLIERS = (0x4F1BBCDD, 0x5DB3D743)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
# Every output bit depends on every input bit after five; simple statistical tests fail at four. Two more for margin.
_ROUNDS = 7


def words(*key: int | np.ndarray | Tensor) -> tuple[Any, Any]:
    """Two independent 32-bit words for a key: Python integers, numpy or torch int64, as the key's components are."""
    high, low = _START
    for component in map(_integer, key):
        high, low = _stir(high ^ ((component >> 32) & WORD), low ^ (component & WORD))
    return high, low


def bits(*key: Key, device: torch.device | str | None = None) -> Tensor:
    """32 random bits per element, as int64 in [0, 2^32); `device` is where a key of plain integers is put."""
    return _tensor(words(*key)[1], device)


def uniform(*key: Key, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """Floats strictly between 0 and 1, the same on every device; float32 has 23 random bits, float64 has 52.

    Without a type they are in float32, and in float64 where that is the default, as it is in a proof.
    Each is an odd multiple of 2^-24 (2^-53): the middle of its cell and exactly representable, so that neither
    end is ever reached by rounding.
    """
    if dtype is None:
        dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    assert dtype in (torch.float32, torch.float64), f"uniform gives float32 or float64, not {dtype}"
    high, low = words(*key)
    if dtype == torch.float32:
        return (_tensor(low, device) >> 9).to(dtype) * 2.0**-23 + 2.0**-24
    cell = (low << 20) | (high >> 12)
    return _tensor(cell, device).to(dtype) * 2.0**-52 + 2.0**-53


def below(p: float | Tensor, *key: Key, device: torch.device | str | None = None) -> Tensor:
    """True with probability `p`, decided by comparing integers so that no device rounds it differently."""
    drawn = bits(*key, device=device)
    if isinstance(p, Tensor):
        return drawn < (p.to(torch.float64) * 2.0**32).round().to(torch.int64)
    assert 0 <= p <= 1, f"a probability lies in [0, 1], not {p}"
    return drawn < round(p * 2.0**32)


def integers(n: int | Tensor, *key: Key, device: torch.device | str | None = None) -> Tensor:
    """Whole numbers in [0, n), n at most 2^31; all 64 bits are used, so no value is favoured by more than n / 2^64."""
    assert isinstance(n, Tensor) or 1 <= n <= 2**31, f"n lies in [1, 2**31], not {n}"
    return _tensor(scale(words(*key), n), device)


def normal(*key: Key, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """Standard normal noise, within 8.2 of zero; computed in float64, whose last bit may differ on a GPU."""
    uniforms = uniform(*key, dtype=torch.float64, device=device)
    return torch.special.ndtri(uniforms).to(dtype or torch.get_default_dtype())


def gumbel(*key: Key, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None) -> Tensor:
    """Standard Gumbel noise, always finite; computed in float64, whose logarithms may differ by an ulp on a GPU."""
    return -(-uniform(*key, dtype=torch.float64, device=device).log()).log().to(dtype)


def add_gumbel(logits: Tensor, *key: Key, temperature: float = 1.0) -> Tensor:
    """`logits` [..., tokens] in float64 plus `temperature` times Gumbel noise, keyed by `key` and each token's index.

    The largest one is a sample of softmax(logits / temperature), and at temperature 0 the likeliest token. In float64,
    since float32 would clip the tail of the noise. Tensors in `key` broadcast against [tokens]: [rows, 1] for rows.
    """
    scores = logits.double()
    if temperature == 0:
        return scores
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    return gumbel(*key, tokens).mul_(temperature).add_(scores)


def dropout(x: Tensor, p: float, *key: Key) -> Tensor:
    """Dropout keyed by sample: `x` is [rows, ...], each key component an integer or a tensor of shape [rows].

    An element's position is its coordinates, not its offset in memory, so padding a row to another length leaves the
    dropped elements unchanged.
    """
    assert 0 <= p <= 1, f"a probability lies in [0, 1], not {p}"
    if p == 0:
        return x
    inner = x.dim() - 1
    per_row = [k.reshape(-1, *[1] * inner) if isinstance(k, Tensor) and k.dim() else k for k in key]
    dropped = below(p, *per_row, _coordinates(x))
    kept = x if p == 1 else x * (1 / (1 - p))
    # Chosen, not multiplied: a dropped infinity must become 0, not NaN.
    return torch.where(dropped, torch.zeros_like(x), kept)


def purpose(name: str) -> int:
    """A fixed 32-bit number for a name, so that each kind of draw has its own stream; call it at module level."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def scale(pair: tuple[Any, Any], n: Any) -> Any:
    """The words of a key as a whole number in [0, n): their 64 bits times n / 2^64; n at most 2^31 stays below 2^63."""
    high, low = pair
    return (high * n + ((low * n) >> 32)) >> 32


def _stir(high: Any, low: Any) -> tuple[Any, Any]:
    for r in range(_ROUNDS):
        product = low * _MULTIPLIERS[r % 2]  # below 2^63
        high, low = product & WORD, (product >> 31) ^ high
    return high, low


def _integer(component: Any) -> Any:
    """A key component as a Python integer or an int64 array, refusing what would lose bits."""
    if isinstance(component, Tensor):
        assert component.dtype in _INTEGERS, f"a noise key is made of integers, not {component.dtype}"
        return component.to(torch.int64)
    if isinstance(component, np.ndarray):
        return component.astype(np.int64, casting="safe", copy=False)
    number = operator.index(component)
    if not -(2**63) <= number < 2**63:
        raise UserError(f"a seed must fit in a signed 64-bit integer, and {number} does not: choose a smaller one")
    return number


def _tensor(value: Any, device: torch.device | str | None) -> Tensor:
    if isinstance(value, Tensor):
        return value if device is None else value.to(device)
    return torch.tensor(value, dtype=torch.int64, device=device)


def _coordinates(x: Tensor) -> Tensor:
    """For each element of a row of `x`, its coordinates packed into one integer, in the shape [1, *row]."""
    row = x.shape[1:]
    if not row:
        return torch.zeros(1, dtype=torch.int64, device=x.device)
    width = 63 // len(row)
    packed = torch.zeros((1,) * x.dim(), dtype=torch.int64, device=x.device)
    for axis, length in enumerate(row):
        assert length <= 1 << width, f"dropout keys {len(row)} coordinates of {width} bits; {length} does not fit"
        along = torch.arange(length, device=x.device).reshape(-1, *[1] * (len(row) - 1 - axis))
        packed = packed | (along << (width * axis))
    return packed
