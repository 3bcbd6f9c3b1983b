"""Which files of a folder decide what a model computes."""

import json
from pathlib import Path

import pytest

from encoder_toys import backbone_folder
from samestep.models.model_files import causal_files
from samestep.models.sentence_export import write_encoder
from samestep.models.sentence_folder import open_encoder


@pytest.fixture
def student(tmp_path: Path) -> Path:
    """A folder of sentence-transformers with all kinds of modules."""
    source = open_encoder(backbone_folder("bert", tmp_path / "plain")).with_projection(8)
    encoder = source.load()
    write_encoder(tmp_path / "student", source, encoder.state_dict(), "")
    return tmp_path / "student"


def test_every_file_of_an_encoder_but_its_card(student: Path) -> None:
    files = open_encoder(student).files
    found = {name for own in files.values() for name in own}
    there = {str(path.relative_to(student)) for path in student.rglob("*") if path.is_file()}
    assert there - found == {"README.md"}
    assert all(path == student / name for own in files.values() for name, path in own.items())
    assert "1_Pooling/config.json" in files["pooling"] and "modules.json" in files["configuration"]
    modules = json.loads((student / "modules.json").read_text())
    dense = [module["path"] for module in modules if module["type"].endswith("Dense")]
    assert {"model.safetensors", *(f"{path}/model.safetensors" for path in dense)} <= set(files["weights"])
    assert {"tokenizer.json", "tokenizer_config.json"} <= set(files["tokenizer"])


def test_copies_of_weights_that_are_not_read_are_left_out(tmp_path: Path) -> None:
    folder = backbone_folder("bert", tmp_path / "plain")
    for name in ("pytorch_model.bin", "model.onnx", "README.md"):
        (folder / name).write_text("")
    files = open_encoder(folder).files
    assert list(files["weights"]) == ["model.safetensors"] and files["pooling"] == files["prompts"] == {}


def test_a_tokenizer_in_another_folder(tmp_path: Path) -> None:
    one, two = (backbone_folder("qwen2", tmp_path / name) for name in ("one", "two"))
    files = causal_files(one, two)
    assert {path.parent for path in files["tokenizer"].values()} == {two}
    assert {path.parent for part in ("weights", "configuration") for path in files[part].values()} == {one}
    assert list(files["configuration"]) == ["config.json"]
