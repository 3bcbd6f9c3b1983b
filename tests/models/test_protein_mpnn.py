"""The network by what must hold of it; test_protein_mpnn_oracle.py compares it with the published program."""

import math

import pytest
import torch
from torch import Tensor

from protein_toys import TINY, Proteins, proteins, tiny_network
from samestep.core.errors import UserError
from samestep.models.protein_mpnn import LETTERS, ProteinMPNN, ProteinMPNNConfig
from samestep.models.protein_mpnn_features import nearest, pair_distances, radial_bases
from samestep.parallel.precision import cast_weights


def gradients(network: ProteinMPNN, loss: Tensor) -> dict[str, Tensor]:
    names, weights = zip(*network.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, weights), strict=True))


def native_loss(network: ProteinMPNN, batch: Proteins) -> Tensor:
    found = network(*batch).gather(-1, batch.sequence[..., None])[..., 0]
    return torch.where(batch.resolved, found, 0.0).sum()


def test_the_published_size() -> None:
    network = ProteinMPNN(ProteinMPNNConfig())
    assert sum(weight.numel() for weight in network.parameters()) == 1_660_485
    assert not list(network.buffers())
    assert len(LETTERS) == 21


def test_probabilities_of_each_letter() -> None:
    batch = proteins()
    log_probs = tiny_network()(*batch)
    assert log_probs.shape == (2, 14, 21)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(2, 14))
    assert log_probs.std(-1).min() > 0.05, "the comparisons below must not be ones of equal odds"


def test_padding_changes_nothing() -> None:
    network, batch = tiny_network(dtype=torch.float64), proteins(unresolved=(3,), dtype=torch.float64)
    long = batch.padded(5)
    torch.testing.assert_close(network(*long)[:, :14], network(*batch), atol=1e-12, rtol=0)
    expected = gradients(network, native_loss(network, batch))
    for name, gradient in gradients(network, native_loss(network, long)).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-11, rtol=1e-11, msg=name)


def test_padding_of_a_protein_with_fewer_residues_than_neighbours() -> None:
    config = ProteinMPNNConfig(hidden=16, encoder_layers=2, decoder_layers=2, neighbours=48)
    network, batch = tiny_network(config=config, dtype=torch.float64), proteins(length=9, dtype=torch.float64)
    for more in (1, 60):
        found = network(*batch.padded(more, coordinate=0.0))[:, :9]
        torch.testing.assert_close(found, network(*batch), atol=1e-12, rtol=0)


@pytest.mark.parametrize("neighbours", [6, 48])
def test_an_unresolved_residue_is_as_if_it_were_not_there(neighbours: int) -> None:
    config = ProteinMPNNConfig(hidden=16, encoder_layers=2, decoder_layers=2, neighbours=neighbours)
    network, batch = tiny_network(config=config, dtype=torch.float64), proteins(unresolved=(5,), dtype=torch.float64)
    found = network(*batch)
    assert found.isfinite().all()
    expected = network(*batch.without(5))
    torch.testing.assert_close(torch.cat((found[:, :5], found[:, 6:]), 1), expected, atol=1e-12, rtol=0)
    for gradient in gradients(network, native_loss(network, batch)).values():
        assert gradient.isfinite().all()


def test_coordinates_get_finite_gradients() -> None:
    network, batch = tiny_network(), proteins(unresolved=(0, 7))
    coordinates = batch.coordinates.requires_grad_()
    native_loss(network, batch).backward()
    assert coordinates.grad is not None and coordinates.grad.isfinite().all()
    assert bool((coordinates.grad[~batch.resolved] == 0).all())
    assert coordinates.grad[batch.resolved].abs().min() > 0


def test_nothing_resolved_gives_numbers() -> None:
    network, batch = tiny_network(), proteins(unresolved=tuple(range(14)))
    assert network(*batch).isfinite().all()


def test_a_letter_reaches_only_what_is_decoded_after_it() -> None:
    config = ProteinMPNNConfig(hidden=16, encoder_layers=2, decoder_layers=2, neighbours=14)
    network, batch = tiny_network(config=config), proteins()
    before = network(*batch)
    for position in range(14):
        sequence = batch.sequence.clone()
        sequence[:, position] = (sequence[:, position] + 1) % 20
        moved = (network(*batch._replace(sequence=sequence)) - before).abs().amax(-1) > 0
        assert torch.equal(moved, batch.order > batch.order[:, position : position + 1])


def test_only_the_order_of_the_numbers_in_an_order_counts() -> None:
    network, batch = tiny_network(), proteins()
    assert torch.equal(network(*batch), network(*batch._replace(order=batch.order * 7 - 20)))


def test_a_row_does_not_depend_on_others() -> None:
    network, batch = tiny_network(dtype=torch.float64), proteins(unresolved=(2,), dtype=torch.float64)
    both = network(*batch)
    for number in range(2):
        torch.testing.assert_close(network(*batch.row(number))[0], both[number], atol=1e-12, rtol=0)


def test_turned_and_moved_structures_are_the_same() -> None:
    network, batch = tiny_network(dtype=torch.float64), proteins(dtype=torch.float64)
    turn, _ = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64))
    turn[:, 0] *= torch.linalg.det(turn).sign()
    expected = network(*batch)
    found = network(*batch._replace(coordinates=batch.coordinates @ turn + 3.0))
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    mirrored = network(*batch._replace(coordinates=-batch.coordinates))
    assert (mirrored - expected).abs().max() > 1e-3


def test_relative_positions_end_at_32_and_at_the_chain() -> None:
    network = tiny_network(config=ProteinMPNNConfig(hidden=16, encoder_layers=1, decoder_layers=1, neighbours=14))
    batch = proteins(chains=1)
    far = {gap: network(*batch._replace(residue_index=gap * batch.residue_index)) for gap in (1, 32, 33, 1000)}
    torch.testing.assert_close(far[33], far[1000])
    torch.testing.assert_close(far[32], far[33])
    assert (far[1] - far[32]).abs().max() > 1e-3
    alone = batch._replace(chain=torch.arange(14).expand(2, 14))
    other_chains = network(*alone)
    assert (other_chains - far[1000]).abs().max() > 1e-3
    torch.testing.assert_close(other_chains, network(*alone._replace(residue_index=5 * batch.residue_index)))


def test_several_sequences_share_one_encoding() -> None:
    network, batch = tiny_network(dtype=torch.float64), proteins(dtype=torch.float64)
    other = (batch.sequence + 3) % 20
    found = network(*batch._replace(sequence=torch.stack((batch.sequence, other), 1)))
    assert found.shape == (2, 2, 14, 21)
    torch.testing.assert_close(found[:, 0], network(*batch), atol=1e-12, rtol=0)
    torch.testing.assert_close(found[:, 1], network(*batch._replace(sequence=other)), atol=1e-12, rtol=0)


def test_neighbours_are_the_nearest_and_then_the_first() -> None:
    points = torch.tensor([[[0.0, 0, 0], [2, 0, 0], [-1, 0, 0], [1, 0, 0], [-2, 0, 0]]])
    resolved = torch.tensor([[True, True, True, True, True]])
    assert nearest(points, resolved, 4).neighbours[0, 0].tolist() == [0, 2, 3, 1]
    resolved[0, 2] = False
    graph = nearest(points, resolved, 5)
    assert graph.neighbours[0, 0].tolist() == [0, 3, 1, 4, 2]
    assert graph.usable[0, 0].tolist() == [True, True, True, True, False]
    assert not graph.usable[0, 2].any()


def test_distances_by_hand() -> None:
    coordinates = torch.tensor(
        [[[1.0, 0, 0], [0, 0, 0], [0, 2, 0], [0, 0, 3]], [[5.0, 0, 0], [0, 0, 4], [0, 0, 0], [0, 0, 0]]]
    )
    distances = pair_distances(coordinates[None], torch.tensor([[[0, 1], [1, 0]]]))
    assert distances.shape == (1, 2, 2, 25)
    ca_ca, n_n, ca_n, n_ca = distances[0, 0, 1, [0, 1, 5, 15]].tolist()
    assert (ca_ca, n_n, ca_n) == pytest.approx((4, 4, 5), abs=1e-5)
    assert n_ca == pytest.approx(math.sqrt(17), abs=1e-5)
    # CB of the first residue: N to CA is (-1, 0, 0), CA to C (0, 2, 0), their cross product (0, 0, -2).
    cb = (-0.56802827, 2 * -0.54067466, -2 * -0.58273431)
    assert distances[0, 0, 0, 8].item() == pytest.approx(math.hypot(*cb), abs=1e-5)
    bases = radial_bases(torch.tensor([2.0, 22.0]))
    assert bases[[0, 31]].tolist() == [1.0, 1.0]
    assert bases[1].item() == pytest.approx(math.exp(-(((20 / 15) / 1.25) ** 2)), abs=1e-6)


@pytest.mark.parametrize("are_weights_cast", [False, True], ids=["weights in float32", "weights in bf16"])
def test_bf16_autocast_keeps_geometry_in_float32(are_weights_cast: bool) -> None:
    network, batch = tiny_network(), proteins(unresolved=(4,))
    batch = batch._replace(coordinates=batch.coordinates + 400)  # where bf16 has steps of 2 Å
    plain = network(*batch)
    with torch.autocast("cpu", torch.bfloat16), cast_weights(network, torch.bfloat16 if are_weights_cast else None):
        encoded = network.encode(*batch.structure)
        cast = network(*batch)
        loss = native_loss(network, batch)
    assert encoded.edges.dtype == torch.bfloat16
    assert encoded.nodes.dtype == cast.dtype == torch.float32
    assert (cast - plain).abs().max() < 0.05
    assert all(gradient.isfinite().all() for gradient in gradients(network, loss).values())


def test_a_float64_network_takes_float32_coordinates() -> None:
    network, batch = tiny_network(dtype=torch.float64), proteins()
    found = network(*batch)
    assert found.dtype == torch.float64
    wide = batch._replace(coordinates=batch.coordinates.double())
    assert torch.equal(found, network(*wide))


def test_traces_without_a_graph_break() -> None:
    config = ProteinMPNNConfig(hidden=16, encoder_layers=1, decoder_layers=1, neighbours=6)
    network, batch = tiny_network(config=config), proteins(unresolved=(1,))
    compiled = torch.compile(native_loss, backend="aot_eager", fullgraph=True)
    expected = gradients(network, native_loss(network, batch))
    for name, gradient in gradients(network, compiled(network, batch)).items():
        torch.testing.assert_close(gradient, expected[name], msg=name)


def test_fresh_weights_follow_the_seed_and_the_rule() -> None:
    def build(seed: int) -> ProteinMPNN:
        torch.manual_seed(seed)
        return ProteinMPNN(ProteinMPNNConfig(hidden=64, encoder_layers=1, decoder_layers=1))

    first, again, other = build(0).state_dict(), build(0).state_dict(), build(1).state_dict()
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())
    assert not torch.equal(first["W_s.weight"], other["W_s.weight"])
    for name, weight in first.items():
        if "norm" in name:
            assert bool((weight == (1.0 if name.endswith("weight") else 0.0)).all())
        elif weight.dim() == 2:
            bound = math.sqrt(6 / sum(weight.shape))  # Xavier, uniform
            assert 0.95 * bound < float(weight.abs().max()) <= bound
    assert 0.9 * 64**-0.5 < float(first["encoder_layers.0.dense.W_in.bias"].abs().max()) <= 64**-0.5


def test_built_on_meta_then_drawn_equals_built_at_once() -> None:
    with torch.device("meta"):
        late = ProteinMPNN(TINY)
    late.to_empty(device="cpu")
    torch.manual_seed(0)
    late.initialise()
    torch.manual_seed(0)
    at_once = ProteinMPNN(TINY)
    assert all(torch.equal(a, b) for a, b in zip(late.parameters(), at_once.parameters(), strict=True))


@pytest.mark.parametrize("field", ["hidden", "encoder_layers", "decoder_layers", "neighbours"])
def test_impossible_shapes_are_refused(field: str) -> None:
    with pytest.raises(UserError, match=f"{field} must be a whole number of at least 1, not 0"):
        ProteinMPNNConfig(**{field: 0})


@pytest.mark.gpu
def test_gpu_equals_cpu_never_waits_and_is_captured() -> None:
    network, batch = tiny_network(), proteins(unresolved=(1,))
    expected = network(*batch).detach()
    network, there = network.cuda(), Proteins(*(part.cuda() for part in batch))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            native_loss(network, there).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = network(*there)
    there.coordinates.mul_(1.0)
    graph.replay()
    torch.testing.assert_close(captured.cpu(), expected, atol=1e-4, rtol=0)
