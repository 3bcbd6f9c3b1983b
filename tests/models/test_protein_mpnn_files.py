"""Weight files in the published form: read, written, refused."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from protein_toys import TINY, proteins, tiny_network
from samestep.core.errors import UserError
from samestep.models.protein_mpnn_files import read_protein_mpnn, write_protein_mpnn


def written(folder: Path, **changes: Any) -> Path:
    """A file with a tiny network, of which some entries are others."""
    weights = dict(tiny_network().state_dict())
    content = {"num_edges": 6, "noise_level": 0.2, "model_state_dict": weights, **changes}
    torch.save({name: value for name, value in content.items() if value is not None}, folder / "some.pt")
    return folder / "some.pt"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    network, batch = tiny_network(), proteins()
    write_protein_mpnn(tmp_path / "new" / "best_model.pt", TINY, network.state_dict(), 0.1)
    file = read_protein_mpnn(tmp_path / "new" / "best_model.pt")
    assert (file.config, file.noise_level) == (TINY, 0.1)
    again = file.network()
    assert torch.equal(again(*batch), network(*batch))
    assert all(weight.requires_grad for weight in again.parameters())
    again.W_s.weight.data.zero_()
    assert file.weights["W_s.weight"].abs().max() > 0, "a network has weights of its own"


def test_the_form_is_the_published_one(tmp_path: Path) -> None:
    write_protein_mpnn(tmp_path / "a.pt", TINY, tiny_network(dtype=torch.float64).state_dict(), 0.02)
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    assert {name: value for name, value in content.items() if name != "model_state_dict"} == {
        "num_edges": 6,
        "noise_level": 0.02,
    }
    assert {weight.dtype for weight in content["model_state_dict"].values()} == {torch.float32}
    assert os.listdir(tmp_path) == ["a.pt"]


def test_a_file_of_a_training_program_has_more_in_it(tmp_path: Path) -> None:
    path = written(tmp_path, epoch=3, optimizer_state_dict={"state": {}})
    assert read_protein_mpnn(path).config == TINY


def test_a_network_is_of_the_default_type(tmp_path: Path) -> None:
    file = read_protein_mpnn(written(tmp_path))
    torch.set_default_dtype(torch.float64)
    try:
        network = file.network()
    finally:
        torch.set_default_dtype(torch.float32)
    assert {weight.dtype for weight in network.parameters()} == {torch.float64}
    assert torch.equal(network.W_s.weight.float(), file.weights["W_s.weight"])


def without(name: str) -> dict[str, Any]:
    return {key: weight for key, weight in tiny_network().state_dict().items() if key != name}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_edges": None}, "it has no num_edges"),
        ({"num_edges": None, "model_state_dict": None}, "it has no num_edges and no model_state_dict"),
        ({"num_edges": "many"}, "of another kind"),
        ({"num_edges": 0}, "no layers or no edges"),
        ({"model_state_dict": [1]}, "of another kind"),
        ({"model_state_dict": {}}, "of another kind"),
        ({"model_state_dict": {"x": torch.zeros(2)}}, "no embedding of letters"),
        ({"model_state_dict": {"W_s.weight": torch.zeros(21, 16)}}, "no layers or no edges"),
        ({"model_state_dict": without("W_out.bias")}, r"1 of its weights are missing, .* \(W_out.bias\)"),
        ({"model_state_dict": {**without(""), "W_v.weight": torch.zeros(2)}}, r"unknown .* \(W_v.weight\)"),
        ({"model_state_dict": {**without(""), "W_s.weight": torch.zeros(21, 8)}}, "of another shape"),
        ({"model_state_dict": {"features.node_embedding.weight": torch.zeros(2)}}, "is a CA-only ProteinMPNN"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(UserError, match=sentence) as found:
        read_protein_mpnn(path)
    assert str(path) in str(found.value) and "\n" not in str(found.value)


def test_what_is_no_weight_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with pytest.raises(UserError, match="there is no file"):
        read_protein_mpnn(path)
    for content in (b"", b"ATOM      1  N   ALA A   1", written(tmp_path).read_bytes()[:-2000]):
        path.write_bytes(content)
        with pytest.raises(UserError, match="is not a weight file of ProteinMPNN"):
            read_protein_mpnn(path)
    torch.save(torch.zeros(3), path)
    with pytest.raises(UserError, match="it holds a Tensor"):
        read_protein_mpnn(path)


class Harmful:
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.mkdir, (os.environ["HARM"],)


def test_nothing_in_a_file_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARM", str(tmp_path / "harm"))
    path = written(tmp_path, extra=Harmful())
    with pytest.raises(UserError, match="cannot be read without running code"):
        read_protein_mpnn(path)
    assert not (tmp_path / "harm").exists()
