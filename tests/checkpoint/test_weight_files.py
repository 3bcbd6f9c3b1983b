"""Plain weight files, written for others and read from them."""

import json
import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from samestep.checkpoint.weight_files import check_shapes, open_weight_file, save_weights
from samestep.checkpoint.weight_sources import read_all
from samestep.core.errors import UserError

WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.tensor([1.0, 2.0], dtype=torch.bfloat16)}


class Loaded(NamedTuple):
    weights: dict[str, torch.Tensor]
    extra: dict[str, Any]
    notes: list[str]


def load_weights(path: Path) -> Loaded:
    source, extra, notes = open_weight_file(path)
    return Loaded(read_all(source), extra, notes)


def same(found: dict, expected: dict) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_others_can_load_what_we_save(tmp_path: Path) -> None:
    save_weights(tmp_path / "deep" / "w.pt", WEIGHTS)
    assert same(torch.load(tmp_path / "deep" / "w.pt", weights_only=True), WEIGHTS)
    save_weights(
        tmp_path / "w.pt", WEIGHTS, {"num_edges": 48, "noise": 0.2, "classes": ["x", None], "t": torch.ones(1)}
    )
    found = torch.load(tmp_path / "w.pt", weights_only=True)
    assert found["num_edges"] == 48
    assert same(found["model_state_dict"], WEIGHTS)
    assert os.listdir(tmp_path / "deep") == ["w.pt"], "nothing else is left"


def test_what_we_save_comes_back(tmp_path: Path) -> None:
    save_weights(tmp_path / "w.pt", WEIGHTS, {"epoch": 3})
    weights, extra, notes = load_weights(tmp_path / "w.pt")
    assert same(weights, WEIGHTS)
    assert extra == {"epoch": 3}
    assert not notes, "this is how files are published"
    torch.save({"model": WEIGHTS, "epoch": 3, "state_dict": WEIGHTS}, tmp_path / "w.pt")
    assert load_weights(tmp_path / "w.pt").notes == ["took the weights under 'state_dict', not those under 'model'"]


def test_a_failing_save_leaves_the_old_file(tmp_path: Path) -> None:
    save_weights(tmp_path / "w.pt", WEIGHTS)
    with pytest.raises(AttributeError):
        save_weights(tmp_path / "w.pt", {"a": "no tensor"})  # type: ignore[dict-item]
    with pytest.raises(AssertionError, match="set cannot go"):
        save_weights(tmp_path / "w.pt", WEIGHTS, {"seen": {1, 2}})
    assert same(load_weights(tmp_path / "w.pt").weights, WEIGHTS)
    assert os.listdir(tmp_path) == ["w.pt"]


def test_a_part_of_a_large_tensor_is_saved_alone(tmp_path: Path) -> None:
    save_weights(tmp_path / "w.pt", {"row": torch.zeros(1000, 1000)[3]})
    assert (tmp_path / "w.pt").stat().st_size < 20_000


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module."]
)
def test_prefixes_of_wrappers_are_removed(tmp_path: Path, prefix: str) -> None:
    wrapped = {prefix + name: tensor for name, tensor in WEIGHTS.items()}
    torch.save(wrapped, tmp_path / "theirs.pt")
    weights, _, notes = load_weights(tmp_path / "theirs.pt")
    assert same(weights, WEIGHTS)
    assert len(notes) == 1
    save_weights(tmp_path / "ours.pt", wrapped)
    assert same(torch.load(tmp_path / "ours.pt", weights_only=True), WEIGHTS)


def test_a_part_called_module_keeps_its_name(tmp_path: Path) -> None:
    named = {"module.weight": torch.ones(1), "head.weight": torch.ones(1)}
    torch.save(named, tmp_path / "w.pt")
    assert load_weights(tmp_path / "w.pt").weights.keys() == named.keys()


@pytest.mark.parametrize("name", ["model_state_dict", "state_dict", "model"])
def test_weights_are_found_under_common_names(tmp_path: Path, name: str) -> None:
    torch.save({name: WEIGHTS, "epoch": 7, "optimizer": {"lr": 0.1}}, tmp_path / "w.pt")
    weights, extra, _ = load_weights(tmp_path / "w.pt")
    assert same(weights, WEIGHTS)
    assert extra == {"epoch": 7, "optimizer": {"lr": 0.1}}


class Planted:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.path,)


def test_a_file_that_runs_code_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1), "b": Planted(str(tmp_path / "ran"))}, tmp_path / "w.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Planted(str(tmp_path / "ran")), protocol=2))
    torch.save(nn.Linear(1, 1), tmp_path / "module.pt")
    for name in ("w.pt", "raw.pt", "module.pt"):
        with pytest.raises(
            UserError, match=r"without running code from it; save it again with torch.save\(model.state_dict"
        ):
            load_weights(tmp_path / name)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [{"epoch": 1}, {}, [1, 2], {"model": {"a": 1}}])
def test_a_file_without_weights_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(UserError, match="be under model_state_dict or state_dict or model"):
        load_weights(tmp_path / "w.pt")


def test_broken_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(b"")
    (tmp_path / "w.safetensors").write_bytes(b"\x01\x02")
    for name, sentence in (("w.pt", "save it again"), ("w.safetensors", "copy it again"), ("no.pt", "there is no")):
        with pytest.raises(UserError, match=sentence):
            load_weights(tmp_path / name)


def test_safetensors_files_and_folders(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    assert same(load_weights(tmp_path / "model.safetensors").weights, WEIGHTS)
    assert same(load_weights(tmp_path).weights, WEIGHTS)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="has 0 safetensors files"):
        load_weights(tmp_path)

    where = {"a.weight": "part-1.safetensors", "a.bias": "part-2.safetensors"}
    for name, file in where.items():
        save_file({name: WEIGHTS[name]}, tmp_path / file)
    with pytest.raises(UserError, match="has 2 safetensors files and 0 index files"):
        load_weights(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert same(load_weights(tmp_path).weights, WEIGHTS)
    (tmp_path / "part-2.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks part-2.safetensors"):
        load_weights(tmp_path)


def test_weights_must_fit_the_model() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in WEIGHTS.items()}
    check_shapes(WEIGHTS, shapes)
    with pytest.raises(
        UserError, match=r"1 missing, namely b; 1 unknown to the model, namely a.bias; 1 of another shape, "
    ):
        check_shapes(WEIGHTS, {"a.weight": (3, 2), "b": (1,)})
    with pytest.raises(UserError, match=r"4 missing, namely n0, n1, n2, \.\.\.\)"):
        check_shapes({}, {f"n{i}": (1,) for i in range(4)})
