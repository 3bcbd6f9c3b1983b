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
DROP = noise.purpose("drop")
EXTREMES = [0, 1, -1, 2**31, 2**32 - 1, 2**32, -(2**32), 2**62 + 5, 2**63 - 1, -(2**63)]


def column(*values: int) -> torch.Tensor:
    return torch.tensor(values)[:, None]


def sample(n: int, *key: noise.Key) -> np.ndarray:
    return noise.bits(*key, torch.arange(n)).numpy()


def chi_square(values: np.ndarray, bins: int) -> float:
    """The probability of a spread at least as uneven as this one."""
    return float(stats.chisquare(np.bincount(values, minlength=bins)).pvalue)


# --- one function, for ever and everywhere ---


def test_the_function_never_changes():
    assert noise.words() == (0x6FED0C39, 0x316EABBD)
    assert noise.words(0) == (0x768E38EB, 0xBDECA0BA)
    assert noise.words(1, 2) == (0x05935620, 0x785C0E77)
    assert noise.words(-1, 2**62, -(2**63)) == (0xC8453235, 0x33605DF3)
    assert MASK == 0x48BF9B4F
    expected = [[3328129185, 2438937734, 2381410779], [3694777008, 1918549063, 2844804218]]
    assert noise.bits(7, MASK, column(0, 1), torch.arange(3)).tolist() == expected


def test_derived_draws_never_change():
    t = torch.arange(3)
    assert [x.hex() for x in noise.uniform(7, t).tolist()] == [
        "0x1.2708720000000p-1",
        "0x1.1b73c60000000p-1",
        "0x1.1e9d340000000p-2",
    ]
    assert [x.hex() for x in noise.uniform(7, t, dtype=torch.float64).tolist()] == [
        "0x1.27087165f797dp-1",
        "0x1.1b73c5b89b841p-1",
        "0x1.1e9d32c757606p-2",
    ]
    assert noise.integers(1000, 7, torch.arange(5)).tolist() == [983, 303, 835, 772, 322]
    assert noise.gumbel(7, t).tolist() == pytest.approx([0.5955895694846763, 0.525463914809728, -0.24163963698286367])


def test_python_integers_numpy_and_torch_agree_without_overflow():
    # Python's integers have no width: had anything overflowed in int64, these would part.
    for x in EXTREMES:
        for y in EXTREMES:
            exact = noise.words(x, y)
            assert exact == tuple(w.item() for w in noise.words(np.array([x]), np.array([y])))
            assert exact == tuple(w.item() for w in noise.words(torch.tensor([x]), y))
            assert all(0 <= w < 2**32 for w in exact)


def test_where_a_component_comes_from_makes_no_difference():
    index = torch.tensor([5, 6])
    expected = noise.bits(7, MASK, index[:, None], torch.arange(4))
    assert torch.equal(noise.bits(torch.tensor(7), torch.full((2, 1), MASK), index[:, None], torch.arange(4)), expected)
    assert torch.equal(noise.bits(np.int64(7), MASK, index.int()[:, None], torch.arange(4)), expected)
    assert noise.bits(7, MASK, 6, 3).item() == expected[1, 3].item()


def test_rows_are_the_same_together_or_apart():
    epoch, index, position = torch.full((6,), 3), torch.arange(100, 106), torch.arange(17)
    whole = noise.bits(7, MASK, epoch[:, None], index[:, None], position[None, :])
    for start, stop in ((0, 1), (1, 4), (4, 6)):
        part = noise.bits(7, MASK, epoch[start:stop, None], index[start:stop, None], position[None, :9])
        assert torch.equal(part, whole[start:stop, :9])


def everything(epoch: torch.Tensor, index: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, ...]:
    key = (7, MASK, epoch[:, None], index[:, None], position[None, :])
    rates = torch.linspace(0, 1, len(index), device=index.device)[:, None]
    return (
        noise.bits(*key),
        noise.uniform(*key),
        noise.uniform(*key, dtype=torch.float64),
        noise.below(0.15, *key),
        noise.below(rates, *key),
        noise.integers(2**31 - 1, *key),
        noise.dropout(torch.ones(len(index), len(position), device=index.device), 0.25, 7, index),
    )


KEYS = (torch.tensor([0, 3, -1, 2**40]), torch.tensor([9, -(2**63), 2**63 - 1, 0]), torch.arange(33) - 5)


def test_traced_is_the_same_to_the_bit():
    torch._dynamo.reset()
    compiled = torch.compile(everything, backend="aot_eager", fullgraph=True)
    for ours, eager in zip(compiled(*KEYS), everything(*KEYS), strict=True):
        assert torch.equal(ours, eager)


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="inductor needs a C++ compiler")
def test_compiled_is_the_same_to_the_bit():
    def draw(index: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = noise.bits(7, MASK, index[:, None], position[None, :])
        return drawn, noise.uniform(7, index, dtype=torch.float64)

    torch._dynamo.reset()
    compiled = torch.compile(draw, backend="inductor", fullgraph=True)
    for ours, eager in zip(compiled(*KEYS[1:]), draw(*KEYS[1:]), strict=True):
        assert torch.equal(ours, eager)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_gpu_is_the_same_to_the_bit(compiled: bool):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torch._dynamo.reset()
    function = torch.compile(everything, fullgraph=True) if compiled else everything
    for ours, cpu in zip(function(*(k.cuda() for k in KEYS)), everything(*KEYS), strict=True):
        assert ours.is_cuda
        assert torch.equal(ours.cpu(), cpu)


# --- different keys, different noise ---


def test_keys_that_look_alike_are_different():
    keys = [(), (0,), (0, 0), (0, 0, 0), (1,), (1, 0), (0, 1), (1, 2), (2, 1), (12,), (-1,), (2**32 - 1,), (2**32,)]
    assert len({noise.words(*key) for key in keys}) == len(keys)


def test_no_two_samples_share_a_state():
    epochs, indices = torch.arange(64)[:, None], torch.arange(4096)[None, :]
    high, low = noise.words(7, MASK, epochs, indices)
    assert torch.unique((high << 31) | (low >> 1)).numel() == 64 * 4096


@pytest.mark.parametrize("place", [0, 1, 2])
def test_every_input_bit_flips_half_of_the_output(place: int):
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


def test_purposes_are_stable_and_apart():
    names = [f"purpose {i}" for i in range(1000)]
    numbers = {noise.purpose(name) for name in names}
    assert len(numbers) == 1000
    assert all(0 <= x < 2**32 for x in numbers)


def test_a_seed_that_does_not_fit_is_refused():
    with pytest.raises(UserError, match="choose a smaller one"):
        noise.bits(2**63)


def test_keys_are_integers():
    with pytest.raises(AssertionError, match="made of integers"):
        noise.bits(torch.rand(3))
    with pytest.raises(TypeError):
        noise.bits(1.5)  # type: ignore[arg-type]


# --- it looks random ---

LINES = {
    "positions": lambda i: (7, MASK, 3, 11, i),
    "samples": lambda i: (7, MASK, 3, i, 11),
    "epochs": lambda i: (7, MASK, i, 3, 11),
    "seeds": lambda i: (i, MASK, 7, 3, 11),
    "purposes": lambda i: (7, i, 3, 11, 5),
    "strides": lambda i: (7, MASK, 3, i * 4096, 11),
    "high bits": lambda i: (7, MASK, 3, i << 40, 11),
    "downwards": lambda i: (7, MASK, 3, -i, 11),
}


@pytest.fixture(scope="module", params=list(LINES))
def line(request: pytest.FixtureRequest) -> np.ndarray:
    """Draws along one direction of the key, all else fixed."""
    return noise.bits(*LINES[request.param](torch.arange(2**17))).numpy()


def test_all_parts_of_the_word_are_uniform(line: np.ndarray):
    for shift in (0, 11, 22):
        assert chi_square((line >> shift) & 1023, 1024) > 1e-4
    assert stats.kstest(line / 2**32, "uniform").pvalue > 1e-4


def test_every_bit_is_balanced(line: np.ndarray):
    means = ((line[:, None] >> np.arange(32)) & 1).mean(0)
    assert np.abs(means - 0.5).max() < 4.5 * 0.5 / math.sqrt(len(line))


def test_neighbours_are_independent(line: np.ndarray):
    for lag in (1, 2, 64, 4096):
        one, other = line[:-lag], line[lag:]
        assert abs(np.corrcoef(one, other)[0, 1]) < 4.5 / math.sqrt(len(one))
        for a, b in ((one >> 27, other >> 27), (one & 31, other & 31), (one & 31, other >> 27)):
            assert chi_square((a << 5) | b, 1024) > 1e-4


def test_the_two_words_are_independent():
    high, low = noise.words(7, MASK, torch.arange(2**17))
    assert chi_square((((high >> 27) << 5) | (low >> 27)).numpy(), 1024) > 1e-4
    assert chi_square((((high & 31) << 5) | (low & 31)).numpy(), 1024) > 1e-4


def test_spacings_repeat_as_often_as_chance_has_it():
    # The birthday spacings test: in 4096 sorted 32-bit draws, equal gaps are Poisson with mean 4096^3 / 2^34 = 4.
    draws = noise.bits(7, torch.arange(64)[:, None], torch.arange(4096)).numpy()
    gaps = np.sort(np.diff(np.sort(draws, axis=1), axis=1), axis=1)
    repeats = int((np.diff(gaps, axis=1) == 0).sum())
    assert abs(repeats - 256) < 4.5 * math.sqrt(256)


# --- what is drawn from the bits ---


@pytest.mark.parametrize("p", [1e-3, 0.15, 0.5, 1 / 3, 0.999])
def test_below_is_true_as_often_as_asked(p: float):
    n = 2**19
    hits = int(noise.below(p, 7, MASK, torch.arange(n)).sum())
    assert abs(hits - n * p) < 4 * math.sqrt(n * p * (1 - p))


def test_below_compares_integers():
    drawn = int(noise.bits(7, 5))
    assert noise.below((drawn + 1) / 2**32, 7, 5).item() is True
    assert noise.below(drawn / 2**32, 7, 5).item() is False


def test_below_never_at_zero_and_always_at_one():
    position = torch.arange(4096)
    for zero, one in ((0.0, 1.0), (torch.zeros(1), torch.ones(1))):
        assert not noise.below(zero, 7, position).any()
        assert noise.below(one, 7, position).all()
    assert noise.below(torch.tensor(1.0, dtype=torch.bfloat16), 7, position).all()


def test_below_takes_a_probability_per_row():
    rates, index = torch.tensor([0.1, 0.9, 1 / 3]), torch.arange(3)
    together = noise.below(rates[:, None], 7, index[:, None], torch.arange(64))
    for row, rate in enumerate(rates.tolist()):
        assert torch.equal(together[row], noise.below(rate, 7, row, torch.arange(64)))


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_a_probability_outside_is_refused(p: float):
    with pytest.raises(AssertionError, match="probability"):
        noise.below(p, 7)


def test_uniform_is_strictly_inside(monkeypatch: pytest.MonkeyPatch):
    for word in (0, noise.WORD):
        monkeypatch.setattr(noise, "words", lambda *key, w=word: (w, w))
        for dtype in (torch.float32, torch.float64):
            assert 0 < noise.uniform(7, dtype=dtype).item() < 1
        assert noise.gumbel(7).isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_is_uniform(dtype: torch.dtype):
    drawn = noise.uniform(7, torch.arange(2**16), dtype=dtype)
    assert drawn.dtype == dtype
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > 1e-4


def test_gumbel_is_gumbel():
    drawn = noise.gumbel(7, torch.arange(2**16))
    assert drawn.dtype == torch.float64
    assert stats.kstest(drawn.numpy(), "gumbel_r").pvalue > 1e-4
    assert noise.gumbel(7, torch.arange(4), dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_integers_are_uniform(n: int):
    drawn = noise.integers(n, 7, torch.arange(2**16)).numpy()
    assert set(drawn.tolist()) == set(range(n))
    assert n == 1 or chi_square(drawn, n) > 1e-4


def test_large_integers_favour_no_third():
    # From 32 bits alone, a third of the values below 3 * 2^29 would come up half as often again as the others.
    n = 3 * 2**29
    drawn = noise.integers(n, 7, torch.arange(2**17)).numpy()
    assert chi_square(drawn % 3, 3) > 1e-4
    assert chi_square(drawn * 64 // n, 64) > 1e-4


def test_scaling_stays_below_the_sign_bit():
    top = np.array([noise.WORD])
    assert noise.scale((top, top), 2**31).item() == 2**31 - 1
    assert noise.scale((noise.WORD, noise.WORD), 2**31) == 2**31 - 1


def test_integers_take_a_bound_per_row():
    bounds = torch.tensor([3, 50, 2**31])
    together = noise.integers(bounds[:, None], 7, column(0, 1, 2), torch.arange(32))
    for row, n in enumerate(bounds.tolist()):
        assert torch.equal(together[row], noise.integers(n, 7, row, torch.arange(32)))


def test_a_key_of_integers_goes_where_it_is_told():
    assert noise.bits(7, 3, device="meta").device.type == "meta"
    assert noise.bits(7, 3).shape == ()


# --- dropout ---


def test_dropout_keeps_and_scales():
    x = torch.randn(8, 64, 64, generator=torch.Generator().manual_seed(0))
    dropped = noise.dropout(x, 0.25, 7, DROP, torch.arange(8))
    kept = dropped != 0
    assert abs(int(kept.sum()) - 0.75 * x.numel()) < 4.5 * math.sqrt(x.numel() * 0.25 * 0.75)
    torch.testing.assert_close(dropped[kept], x[kept] / 0.75)


def test_dropout_follows_the_sample_not_the_batch_or_its_padding():
    x = torch.ones(4, 5, 6, 7)
    index = torch.tensor([10, 11, 12, 13])
    whole = noise.dropout(x, 0.5, 7, DROP, index)
    assert torch.equal(noise.dropout(x[2:, :3, :, :4], 0.5, 7, DROP, index[2:]), whole[2:, :3, :, :4])
    assert not torch.equal(whole[0], whole[1])
    for axis in (1, 2, 3):
        assert not torch.equal(whole.narrow(axis, 0, 1), whole.narrow(axis, 1, 1))


def test_dropout_of_a_vector_and_at_the_ends():
    x = torch.ones(4096)
    index = torch.arange(4096)
    assert 0 < int((noise.dropout(x, 0.5, 7, index) == 0).sum()) < 4096
    assert torch.equal(noise.dropout(x, 0.0, 7, index), x)
    assert torch.equal(noise.dropout(x, 1.0, 7, index), torch.zeros(4096))


def test_a_dropped_infinity_is_zero_in_value_and_gradient():
    x = torch.full((4, 64), math.inf, requires_grad=True)
    out = noise.dropout(x, 0.5, 7, torch.arange(4))
    out.sum().backward()
    assert x.grad is not None
    assert not out.isnan().any()
    assert torch.equal(x.grad, torch.where(out == 0, 0.0, 2.0))
