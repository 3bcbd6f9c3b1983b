"""Draws from the bits: coin flips, floats, whole numbers and dropout, each with the right probabilities."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from samestep.data import noise

MASK = noise.purpose("mask")
DROP = noise.purpose("drop")


def chi_square(values: np.ndarray, bins: int) -> float:
    """The probability of a spread at least as uneven as this one."""
    return float(stats.chisquare(np.bincount(values, minlength=bins)).pvalue)


@pytest.mark.parametrize("p", [1e-3, 0.15, 0.5, 1 / 3, 0.999])
def test_below_is_true_as_often_as_asked(p: float) -> None:
    n = 2**19
    hits = int(noise.below(p, 7, MASK, torch.arange(n)).sum())
    assert abs(hits - n * p) < 4 * math.sqrt(n * p * (1 - p))


def test_below_compares_integers() -> None:
    drawn = int(noise.bits(7, 5))
    assert noise.below((drawn + 1) / 2**32, 7, 5).item() is True
    assert noise.below(drawn / 2**32, 7, 5).item() is False


def test_below_never_at_zero_and_always_at_one() -> None:
    position = torch.arange(4096)
    for zero, one in ((0.0, 1.0), (torch.zeros(1), torch.ones(1))):
        assert not noise.below(zero, 7, position).any()
        assert noise.below(one, 7, position).all()
    assert noise.below(torch.tensor(1.0, dtype=torch.bfloat16), 7, position).all()


def test_below_takes_a_probability_per_row() -> None:
    rates, index = torch.tensor([0.1, 0.9, 1 / 3]), torch.arange(3)
    together = noise.below(rates[:, None], 7, index[:, None], torch.arange(64))
    for row, rate in enumerate(rates.tolist()):
        assert torch.equal(together[row], noise.below(rate, 7, row, torch.arange(64)))


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_a_probability_outside_is_refused(p: float) -> None:
    with pytest.raises(AssertionError, match="probability"):
        noise.below(p, 7)


def test_uniform_is_strictly_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in (0, noise.WORD):
        monkeypatch.setattr(noise, "words", lambda *key, w=word: (w, w))
        for dtype in (torch.float32, torch.float64):
            assert 0 < noise.uniform(7, dtype=dtype).item() < 1
        assert noise.gumbel(7).isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_is_uniform(dtype: torch.dtype) -> None:
    drawn = noise.uniform(7, torch.arange(2**16), dtype=dtype)
    assert drawn.dtype == dtype
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > 1e-4


def test_gumbel_is_gumbel() -> None:
    drawn = noise.gumbel(7, torch.arange(2**16))
    assert drawn.dtype == torch.float64
    assert stats.kstest(drawn.numpy(), "gumbel_r").pvalue > 1e-4
    assert noise.gumbel(7, torch.arange(4), dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_integers_are_uniform(n: int) -> None:
    drawn = noise.integers(n, 7, torch.arange(2**16)).numpy()
    assert set(drawn.tolist()) == set(range(n))
    assert n == 1 or chi_square(drawn, n) > 1e-4


def test_large_integers_favour_no_third() -> None:
    # From 32 bits alone, a third of the values below 3 * 2^29 would come up half as often again as the others.
    n = 3 * 2**29
    drawn = noise.integers(n, 7, torch.arange(2**17)).numpy()
    assert chi_square(drawn % 3, 3) > 1e-4
    assert chi_square(drawn * 64 // n, 64) > 1e-4


def test_scaling_stays_below_the_sign_bit() -> None:
    top = np.array([noise.WORD])
    assert noise.scale((top, top), 2**31).item() == 2**31 - 1
    assert noise.scale((noise.WORD, noise.WORD), 2**31) == 2**31 - 1


def test_integers_take_a_bound_per_row() -> None:
    bounds = torch.tensor([3, 50, 2**31])
    together = noise.integers(bounds[:, None], 7, torch.tensor([[0], [1], [2]]), torch.arange(32))
    for row, n in enumerate(bounds.tolist()):
        assert torch.equal(together[row], noise.integers(n, 7, row, torch.arange(32)))


def test_a_key_of_integers_goes_to_the_given_device() -> None:
    assert noise.bits(7, 3, device="meta").device.type == "meta"
    assert noise.bits(7, 3).shape == ()


# --- dropout ---


def test_dropout_keeps_and_scales() -> None:
    x = torch.randn(8, 64, 64, generator=torch.Generator().manual_seed(0))
    dropped = noise.dropout(x, 0.25, 7, DROP, torch.arange(8))
    kept = dropped != 0
    assert abs(int(kept.sum()) - 0.75 * x.numel()) < 4.5 * math.sqrt(x.numel() * 0.25 * 0.75)
    torch.testing.assert_close(dropped[kept], x[kept] / 0.75)


def test_dropout_follows_the_sample_not_the_batch_or_its_padding() -> None:
    x = torch.ones(4, 5, 6, 7)
    index = torch.tensor([10, 11, 12, 13])
    whole = noise.dropout(x, 0.5, 7, DROP, index)
    assert torch.equal(noise.dropout(x[2:, :3, :, :4], 0.5, 7, DROP, index[2:]), whole[2:, :3, :, :4])
    assert not torch.equal(whole[0], whole[1])
    for axis in (1, 2, 3):
        assert not torch.equal(whole.narrow(axis, 0, 1), whole.narrow(axis, 1, 1))


def test_dropout_of_a_vector_and_at_the_ends() -> None:
    x = torch.ones(4096)
    index = torch.arange(4096)
    assert 0 < int((noise.dropout(x, 0.5, 7, index) == 0).sum()) < 4096
    assert torch.equal(noise.dropout(x, 0.0, 7, index), x)
    assert torch.equal(noise.dropout(x, 1.0, 7, index), torch.zeros(4096))


def test_a_dropped_infinity_is_zero_in_value_and_gradient() -> None:
    x = torch.full((4, 64), math.inf, requires_grad=True)
    out = noise.dropout(x, 0.5, 7, torch.arange(4))
    out.sum().backward()
    assert x.grad is not None
    assert not out.isnan().any()
    assert torch.equal(x.grad, torch.where(out == 0, 0.0, 2.0))
