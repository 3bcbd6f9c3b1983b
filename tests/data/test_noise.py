"""Noise must be one fixed function of its key, everywhere, and must look random in every direction of the key."""

import math
import shutil

import numpy as np
import pytest
import torch
from scipy import stats

from samestep.core.errors import UserError
from samestep.data import noise

MASK = noise.purpose("mask")
EXTREMES = [0, 1, -1, 2**31, 2**32 - 1, 2**32, -(2**32), 2**62 + 5, 2**63 - 1, -(2**63)]


def chi_square(values: np.ndarray, bins: int) -> float:
    """The probability of a spread at least as uneven as this one."""
    return float(stats.chisquare(np.bincount(values, minlength=bins)).pvalue)


# --- one function, for ever and everywhere ---


def test_the_function_never_changes() -> None:
    assert noise.words(0) == (0x6FED0C39, 0x316EABBD)
    assert noise.words(1, 2) == (0xCF0D005D, 0x2A629381)
    assert noise.words(-1, 2**62, -(2**63)) == (0xE77B8D5E, 0xE8742E4B)
    assert MASK == 0x48BF9B4F
    expected = [[731011883, 63121503, 1039412771], [1914138026, 2406332225, 397666142]]
    assert noise.bits(7, MASK, torch.tensor([[0], [1]]), torch.arange(3)).tolist() == expected


def test_derived_draws_never_change() -> None:
    t = torch.arange(3)
    assert [x.hex() for x in noise.uniform(7, t).tolist()] == [
        "0x1.dbc4860000000p-1",
        "0x1.2e4c2e0000000p-1",
        "0x1.83b0580000000p-3",
    ]
    assert [x.hex() for x in noise.uniform(7, t, dtype=torch.float64).tolist()] == [
        "0x1.dbc484993174fp-1",
        "0x1.2e4c2e95da3dbp-1",
        "0x1.83b054728e4ccp-3",
    ]
    assert noise.integers(1000, 7, torch.arange(5)).tolist() == [596, 926, 319, 206, 991]
    assert noise.normal(7, t, dtype=torch.float64).tolist() == pytest.approx(
        [1.4701075647650288, 0.2286382981020976, -0.8804744644117903]
    )
    assert noise.gumbel(7, t).tolist() == pytest.approx([2.6118991409425614, 0.6407203812137221, -0.5094743470270717])


def test_python_integers_numpy_and_torch_agree_without_overflow() -> None:
    # Python's integers have no width: had anything overflowed in int64, these would part.
    for x in EXTREMES:
        for y in EXTREMES:
            exact = noise.words(x, y)
            assert exact == tuple(w.item() for w in noise.words(np.array([x]), np.array([y])))
            assert exact == tuple(w.item() for w in noise.words(torch.tensor([x]), y))
            assert all(0 <= w < 2**32 for w in exact)


def test_where_a_component_comes_from_makes_no_difference() -> None:
    index = torch.tensor([5, 6])
    expected = noise.bits(7, MASK, index[:, None], torch.arange(4))
    assert torch.equal(noise.bits(torch.tensor(7), torch.full((2, 1), MASK), index[:, None], torch.arange(4)), expected)
    assert torch.equal(noise.bits(np.int64(7), MASK, index.int()[:, None], torch.arange(4)), expected)  # type: ignore[arg-type]
    assert noise.bits(7, MASK, 6, 3).item() == expected[1, 3].item()


def test_rows_are_the_same_together_or_apart() -> None:
    epoch, index, position = torch.full((6,), 3), torch.arange(100, 106), torch.arange(17)
    whole = noise.bits(7, MASK, epoch[:, None], index[:, None], position[None, :])
    for start, stop in ((0, 1), (1, 4), (4, 6)):
        part = noise.bits(7, MASK, epoch[start:stop, None], index[start:stop, None], position[None, :9])
        assert torch.equal(part, whole[start:stop, :9])


def everything(index: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, ...]:
    key = (7, MASK, index[:, None], position[None, :])
    rates = torch.linspace(0, 1, len(index), device=index.device)[:, None]
    return (
        noise.bits(*key),
        noise.uniform(*key),
        noise.uniform(*key, dtype=torch.float64),
        noise.below(rates, *key),
        noise.integers(2**31 - 1, *key),
        noise.dropout(torch.ones(len(index), len(position), device=index.device), 0.25, 7, index),
    )


KEYS = (torch.tensor([9, -(2**63), 2**63 - 1, 2**40]), torch.arange(33) - 5)


def test_traced_is_the_same_to_the_bit() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(everything, backend="aot_eager", fullgraph=True)
    for ours, eager in zip(compiled(*KEYS), everything(*KEYS), strict=True):
        assert torch.equal(ours, eager)


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="inductor needs a C++ compiler")
def test_compiled_is_the_same_to_the_bit() -> None:
    def draw(index: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = noise.bits(7, MASK, index[:, None], position[None, :])
        return drawn, noise.uniform(7, index, dtype=torch.float64)

    torch._dynamo.reset()
    compiled = torch.compile(draw, backend="inductor", fullgraph=True)
    for ours, eager in zip(compiled(*KEYS), draw(*KEYS), strict=True):
        assert torch.equal(ours, eager)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_gpu_is_the_same_to_the_bit(compiled: bool) -> None:
    torch._dynamo.reset()
    function = torch.compile(everything, fullgraph=True) if compiled else everything
    for ours, cpu in zip(function(*(k.cuda() for k in KEYS)), everything(*KEYS), strict=True):
        assert ours.is_cuda
        assert torch.equal(ours.cpu(), cpu)


# --- different keys, different noise ---


def test_similar_keys_are_different() -> None:
    keys = [(), (0,), (0, 0), (0, 0, 0), (1,), (1, 0), (0, 1), (1, 2), (2, 1), (12,), (-1,), (2**32 - 1,), (2**32,)]
    assert len({noise.words(*key) for key in keys}) == len(keys)


def test_no_two_samples_share_a_state() -> None:
    epochs, indices = torch.arange(64)[:, None], torch.arange(4096)[None, :]
    high, low = noise.words(7, MASK, epochs, indices)
    assert torch.unique((high << 31) | (low >> 1)).numel() == 64 * 4096


@pytest.mark.parametrize("place", [0, 1, 2])
def test_every_input_bit_flips_half_of_the_output(place: int) -> None:
    n = 1000
    draw = np.random.default_rng(place)
    key = [draw.integers(-(2**63), 2**63, n) for _ in range(3)]
    before = noise.words(*key)
    key[place] = key[place] ^ (np.int64(1) << np.arange(64))[:, None]
    after = noise.words(*key)
    for a, b in zip(before, after, strict=True):
        changed = np.stack([(((a ^ b) >> bit) & 1).mean(1) for bit in range(32)])  # [output bit, input bit]
        assert np.abs(changed - 0.5).max() < 5 * 0.5 / math.sqrt(n)
        assert np.abs(changed.sum(0) - 16).max() < 5 * math.sqrt(8 / n)


def test_purposes_are_stable_and_apart() -> None:
    names = [f"purpose {i}" for i in range(1000)]
    numbers = {noise.purpose(name) for name in names}
    assert len(numbers) == 1000
    assert all(0 <= x < 2**32 for x in numbers)


def test_a_seed_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="choose a smaller one"):
        noise.bits(2**63)


def test_keys_are_integers() -> None:
    with pytest.raises(AssertionError, match="made of integers"):
        noise.bits(torch.rand(3))
    with pytest.raises(TypeError):
        noise.bits(1.5)  # type: ignore[arg-type]


# --- it looks random ---

DIRECTIONS = {
    "positions": lambda i: (7, MASK, 3, 11, i),
    "samples": lambda i: (7, MASK, 3, i, 11),
    "epochs": lambda i: (7, MASK, i, 3, 11),
    "seeds": lambda i: (i, MASK, 7, 3, 11),
    "purposes": lambda i: (7, i, 3, 11, 5),
    "strides": lambda i: (7, MASK, 3, i * 4096, 11),
    "high bits": lambda i: (7, MASK, 3, i << 40, 11),
    "downwards": lambda i: (7, MASK, 3, -i, 11),
}


@pytest.fixture(scope="module", params=list(DIRECTIONS))
def draws(request: pytest.FixtureRequest) -> np.ndarray:
    """Draws along one direction of the key, all else fixed."""
    return noise.bits(*DIRECTIONS[request.param](torch.arange(2**17))).numpy()


def test_all_parts_of_the_word_are_uniform(draws: np.ndarray) -> None:
    for shift in (0, 11, 22):
        assert chi_square((draws >> shift) & 1023, 1024) > 1e-4
    assert stats.kstest(draws / 2**32, "uniform").pvalue > 1e-4


def test_every_bit_is_balanced(draws: np.ndarray) -> None:
    means = ((draws[:, None] >> np.arange(32)) & 1).mean(0)
    assert np.abs(means - 0.5).max() < 4.5 * 0.5 / math.sqrt(len(draws))


def test_neighbours_are_independent(draws: np.ndarray) -> None:
    for lag in (1, 2, 64, 4096):
        one, other = draws[:-lag], draws[lag:]
        assert abs(np.corrcoef(one, other)[0, 1]) < 4.5 / math.sqrt(len(one))
        for a, b in ((one >> 27, other >> 27), (one & 31, other & 31), (one & 31, other >> 27)):
            assert chi_square((a << 5) | b, 1024) > 1e-4


def test_the_two_words_are_independent() -> None:
    high, low = noise.words(7, MASK, torch.arange(2**17))
    assert chi_square((((high >> 27) << 5) | (low >> 27)).numpy(), 1024) > 1e-4
    assert chi_square((((high & 31) << 5) | (low & 31)).numpy(), 1024) > 1e-4


def test_spacings_repeat_as_often_as_chance_has_it() -> None:
    # The birthday spacings test: in 4096 sorted 32-bit draws, equal gaps are Poisson with mean 4096^3 / 2^34 = 4.
    draws = noise.bits(7, torch.arange(64)[:, None], torch.arange(4096)).numpy()
    gaps = np.sort(np.diff(np.sort(draws, axis=1), axis=1), axis=1)
    repeats = int((np.diff(gaps, axis=1) == 0).sum())
    assert abs(repeats - 256) < 4.5 * math.sqrt(256)
