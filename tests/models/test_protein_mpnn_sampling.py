"""Sampling against the network's own forward pass, and orders."""

import pytest
import torch
from torch import Tensor

from protein_toys import TINY, Proteins, proteins, tiny_network
from samestep.data import noise
from samestep.models.protein_mpnn import UNKNOWN, DecoderLayer, ProteinMPNN
from samestep.models.protein_mpnn_sampling import Choose, Designs, decoding_order, sample

IDS = torch.tensor([[0, 5], [3, 8]])


def keyed(ids: Tensor = IDS, temperature: float = 1.0) -> Choose:
    """Draws by keyed noise."""

    def choose(log_probs: Tensor, place: int) -> Tensor:
        return noise.add_gumbel(log_probs, 11, ids[:, :1], ids[:, 1:], place, temperature=temperature).argmax(-1)

    return choose


def drawn(network: ProteinMPNN, batch: Proteins, design: Tensor, choose: Choose | None = None) -> Designs:
    encoded = network.encode(*batch.structure)
    return sample(network, encoded, batch.sequence, batch.order, design, choose or keyed())


def every(batch: Proteins) -> Tensor:
    return torch.ones_like(batch.resolved)


def some(batch: Proteins) -> Tensor:
    """Design positions anywhere in the order, other ones in each row."""
    return torch.rand(batch.resolved.shape, generator=torch.Generator().manual_seed(3)) < 0.5


@pytest.mark.parametrize("design", [every, some])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=str)
def test_sampled_log_probs_are_those_of_the_forward_pass(
    design: Proteins, dtype: torch.dtype, tolerance: float
) -> None:
    network, batch = tiny_network(dtype=dtype), proteins(unresolved=(4, 9), dtype=dtype)
    where = design(batch)
    seen: dict[int, Tensor] = {}

    def choose(log_probs: Tensor, place: int) -> Tensor:
        seen[place] = log_probs
        return keyed()(log_probs, place)

    found = drawn(network, batch, where, choose)
    forward = network(*batch._replace(sequence=found.sequence))
    scored = where & batch.resolved
    expected = torch.where(scored, forward.gather(-1, found.sequence[..., None])[..., 0], 0.0)
    torch.testing.assert_close(found.log_probs, expected, atol=tolerance, rtol=0)
    for place, log_probs in seen.items():
        at_place = forward[batch.order == place]
        torch.testing.assert_close(log_probs[:, :UNKNOWN], at_place[:, :UNKNOWN], atol=tolerance, rtol=0)
    assert torch.equal(found.sequence[~scored], batch.sequence[~scored])
    assert (found.sequence != batch.sequence).sum() > scored.sum() / 2


def test_unknown_is_never_sampled() -> None:
    network, batch = tiny_network(), proteins()
    with torch.no_grad():
        network.W_out.bias[UNKNOWN] = 50.0
    for temperature in (0.0, 1.0, 100.0):
        assert bool((drawn(network, batch, every(batch), keyed(temperature=temperature)).sequence != UNKNOWN).all())


def test_temperature_zero_takes_the_likeliest_letter() -> None:
    network, batch = tiny_network(), proteins()
    found = drawn(network, batch, every(batch), keyed(temperature=0.0))
    forward = network(*batch._replace(sequence=found.sequence))
    assert torch.equal(found.sequence, forward[..., :UNKNOWN].argmax(-1))


def test_letters_are_drawn_with_their_probability() -> None:
    network, batch, rows = tiny_network(), proteins(length=3, chains=1).row(0), 2000
    batch = batch._replace(order=torch.arange(3)[None])
    encoded = network.encode(*batch.structure).repeat(rows)
    ids = torch.stack((torch.zeros(rows, dtype=torch.int64), torch.arange(rows)), 1)
    many = [part.expand(rows, -1) for part in (batch.sequence, batch.order, every(batch))]
    found = sample(network, encoded, *many, keyed(ids))
    share = torch.bincount(found.sequence[:, 0], minlength=21) / rows
    expected = network(*batch)[0, 0].detach().exp()
    expected[UNKNOWN] = 0
    torch.testing.assert_close(share, expected / expected.sum(), atol=0.03, rtol=0)


def test_a_design_does_not_depend_on_padding_or_other_rows() -> None:
    network, batch = tiny_network(dtype=torch.float64), proteins(unresolved=(13,), dtype=torch.float64)
    batch = batch._replace(order=decoding_order(~some(batch), batch.resolved, bits(IDS, 14)))
    together = drawn(network, batch, some(batch))
    padded = batch.padded(6)
    design = torch.cat((some(batch), torch.zeros(2, 6, dtype=torch.bool)), 1)
    padded = padded._replace(order=decoding_order(~design, padded.resolved, bits(IDS, 20)))
    longer = drawn(network, padded, design)
    assert torch.equal(longer.sequence[:, :14], together.sequence)
    torch.testing.assert_close(longer.log_probs[:, :14], together.log_probs, atol=1e-12, rtol=0)
    for row in range(2):
        alone = drawn(network, batch.row(row), some(batch)[row : row + 1], keyed(IDS[row : row + 1]))
        assert torch.equal(alone.sequence[0], together.sequence[row])


def test_a_letter_costs_one_step_of_one_position(monkeypatch: pytest.MonkeyPatch) -> None:
    network, batch = tiny_network(), proteins()
    design = torch.zeros_like(batch.resolved)
    design[0, 2], design[1, [3, 7, 8]] = True, True
    order = decoding_order(~design, batch.resolved)
    widths: list[int] = []
    step = DecoderLayer.step

    def counted(self: DecoderLayer, nodes: Tensor, *rest: Tensor) -> Tensor:
        widths.append(nodes.shape[1])
        return step(self, nodes, *rest)

    monkeypatch.setattr(DecoderLayer, "step", counted)
    drawn(network, batch._replace(order=order), design)
    assert widths == [14] * TINY.decoder_layers + [1] * TINY.decoder_layers * 3


def test_nothing_to_design() -> None:
    network, batch = tiny_network(), proteins(unresolved=(1,))
    only_unresolved = ~batch.resolved
    found = drawn(network, batch, only_unresolved)
    assert torch.equal(found.sequence, batch.sequence)
    assert not found.log_probs.any()


def test_what_was_given_stays_as_it_is() -> None:
    network, batch = tiny_network(), proteins()
    before = batch.sequence.clone()
    encoded = network.encode(*batch.structure)
    first = sample(network, encoded, batch.sequence, batch.order, every(batch), keyed())
    again = sample(network, encoded, batch.sequence, batch.order, every(batch), keyed())
    assert torch.equal(batch.sequence, before)
    assert torch.equal(first.sequence, again.sequence)
    assert not first.log_probs.requires_grad


def test_bf16_samples_near_float32() -> None:
    network, batch = tiny_network(), proteins()
    with torch.autocast("cpu", torch.bfloat16):
        found = drawn(network, batch, every(batch))
    forward = network(*batch._replace(sequence=found.sequence)).gather(-1, found.sequence[..., None])[..., 0]
    assert found.log_probs.dtype == torch.float32
    assert (found.log_probs - forward).abs().max() < 0.1


# ---- orders


def bits(ids: Tensor, length: int) -> Tensor:
    return noise.bits(7, noise.purpose("order"), ids[:, :1], ids[:, 1:], torch.arange(length))


def test_left_to_right_with_fixed_positions_first() -> None:
    fixed = torch.tensor([[False, True, False, True, True], [False, False, False, False, False]])
    resolved = torch.tensor([[True, True, True, True, False], [True, True, False, True, False]])
    assert decoding_order(fixed, resolved).tolist() == [[2, 0, 3, 1, 4], [0, 1, 3, 2, 4]]


def test_random_orders() -> None:
    fixed = torch.zeros(2, 12, dtype=torch.bool)
    fixed[:, [0, 5, 7]] = True
    resolved = torch.ones(2, 12, dtype=torch.bool)
    resolved[1, 10:] = False
    order = decoding_order(fixed, resolved, bits(IDS, 12))
    assert order.sort(1).values.tolist() == [list(range(12))] * 2
    assert bool((order[fixed] < 3).all()) and bool((order[1, 10:] >= 10).all())
    assert order[0].tolist() != order[1].tolist()
    assert order.tolist() != decoding_order(fixed, resolved).tolist()
    longer = decoding_order(
        torch.cat((fixed, fixed), 1), torch.cat((resolved, torch.zeros_like(resolved)), 1), bits(IDS, 24)
    )
    assert torch.equal(longer[0, :12], order[0])
    assert torch.equal(longer[1, :10], order[1, :10])
    alone = decoding_order(fixed[1:], resolved[1:], bits(IDS[1:], 12))
    assert torch.equal(alone[0], order[1])


def test_equal_bits_go_from_left_to_right() -> None:
    free = torch.zeros(1, 40, dtype=torch.bool)
    order = decoding_order(free, ~free, torch.full((1, 40), 2**32 - 1))
    assert order.tolist() == [list(range(40))]


def test_any_position_may_be_first_in_a_random_order() -> None:
    rows, length = 3000, 6
    free = torch.zeros(rows, length, dtype=torch.bool)
    ids = torch.stack((torch.zeros(rows, dtype=torch.int64), torch.arange(rows)), 1)
    first = decoding_order(free, ~free, bits(ids, length)).argmin(1)
    assert torch.bincount(first, minlength=length).min() > 0.85 * rows / length
