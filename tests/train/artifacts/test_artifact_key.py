"""Keys of artifacts: what differs is named, wherever an artifact is used."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samestep.core.errors import UserError
from samestep.core.json_files import DamagedFile
from samestep.train.artifacts.array_format import LAYOUT, ArrayLayout
from samestep.train.artifacts.array_rows import open_array_rows
from samestep.train.artifacts.array_writer import ArrayArtifact
from samestep.train.artifacts.artifact_key import ArtifactKey, changed_inputs
from samestep.world.world import World

WORLD = World.single()
VALUES = {"texts": "0" * 64, "length": 16, "prompt": "query: ", "settings": {"highest": 0.9, "skip": 0}}


@pytest.fixture
def model(tmp_path: Path) -> dict[str, dict[str, Path]]:
    """Files of a model, by what they are for."""
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    named = {"weights": ["a.bin", "b.bin"], "tokenizer": ["tokenizer.json"], "pooling": ["1_Pooling/config.json"]}
    for name in (name for names in named.values() for name in names):
        (folder / name).write_text(name)
    return {part: {name: folder / name for name in names} for part, names in named.items()}


def key_of(files: dict[str, dict[str, Path]], **values: Any) -> ArtifactKey:
    return ArtifactKey.make(WORLD, "the vectors", values={**VALUES, **values}, files=files, otherwise="start anew")


def artifact(tmp_path: Path, key: ArtifactKey | None, resumed: bool = False) -> ArrayArtifact:
    layout = ArrayLayout.make("out", 2, {"a": ((), "float32")}, proof=False)
    folder = tmp_path / "run" / "artifacts" / "teacher" / "out"
    return ArrayArtifact(folder, layout, WORLD, step=lambda: 0, resumed=resumed, key=key)


def finished(tmp_path: Path, key: ArtifactKey | None) -> Path:
    made = artifact(tmp_path, key)
    made.write(np.arange(2), {"a": torch.ones(2)})
    made.finish()
    return tmp_path / "run" / "artifacts" / "teacher" / "out"


def change_last_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def test_what_was_computed_from_the_same_is_read(tmp_path: Path, model: dict[str, dict[str, Path]]) -> None:
    folder = finished(tmp_path, key_of(model))
    rows = open_array_rows(folder, WORLD, shared=True, key=key_of(model))
    assert len(rows) == 2 and rows.inputs == VALUES
    assert ArtifactKey.read(folder) == replace(key_of(model), otherwise="start a new run")
    moved = tmp_path / "elsewhere"
    (tmp_path / "model").rename(moved)
    again = {part: {name: moved / name for name in own} for part, own in model.items()}
    open_array_rows(folder, WORLD, shared=True, key=key_of(again))
    open_array_rows(folder, WORLD, shared=True, key=ArtifactKey("the vectors", {"length": 16}))
    assert open_array_rows(folder, WORLD, shared=True).inputs == VALUES


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"texts": "1" * 64}, "other texts;"),
        ({"length": 32}, "another length (16 instead of 32);"),
        ({"prompt": ""}, 'another prompt ("query: " instead of "");'),
        ({"settings": {"highest": 0.8, "deep": 1}}, "other settings (deep is new, highest differs, skip is gone);"),
        ({"length": 32, "new": 1}, "another length (16 instead of 32) and another new;"),
    ],
)
def test_values_that_differ(
    values: dict[str, Any], sentence: str, tmp_path: Path, model: dict[str, dict[str, Path]]
) -> None:
    folder = finished(tmp_path, key_of(model))
    with pytest.raises(UserError) as refused:
        open_array_rows(folder, WORLD, shared=True, key=key_of(model, **values))
    assert str(refused.value) == f"the vectors in {folder} were computed with {sentence} start anew"


def test_files_that_differ(tmp_path: Path, model: dict[str, dict[str, Path]]) -> None:
    folder = finished(tmp_path, key_of(model))
    change_last_byte(model["weights"]["b.bin"])
    change_last_byte(model["pooling"]["1_Pooling/config.json"])
    model["tokenizer"]["vocab.txt"] = tmp_path / "vocab.txt"
    (tmp_path / "vocab.txt").write_text("new")
    del model["weights"]["a.bin"]
    with pytest.raises(UserError) as refused:
        open_array_rows(folder, WORLD, shared=True, key=key_of(model))
    assert str(refused.value).removeprefix(f"the vectors in {folder} were computed with ") == (
        "other weights (a.bin is gone, b.bin differs) and another tokenizer (vocab.txt is new) and another pooling "
        "(1_Pooling/config.json differs); start anew"
    )


def test_a_resumed_artifact_has_the_key_that_it_was_begun_with(
    tmp_path: Path, model: dict[str, dict[str, Path]]
) -> None:
    artifact(tmp_path, key_of(model))
    artifact(tmp_path, key_of(model), resumed=True)
    with pytest.raises(UserError, match=r"computed with another length \(16 instead of 8\)"):
        artifact(tmp_path, key_of(model, length=8), resumed=True)
    without = ArtifactKey(
        "the vectors", {name: VALUES[name] for name in VALUES if name != "length"}, key_of(model).files
    )
    with pytest.raises(UserError, match="computed with another length; start a new run"):
        artifact(tmp_path, without, resumed=True)
    artifact(tmp_path, key_of(model, length=8))  # without a checkpoint it begins again
    artifact(tmp_path, key_of(model, length=8), resumed=True)


def test_an_artifact_without_a_key_or_with_a_damaged_one(tmp_path: Path, model: dict[str, dict[str, Path]]) -> None:
    folder = finished(tmp_path, None)
    assert ArtifactKey.read(folder) is None and open_array_rows(folder, WORLD, shared=True).inputs == {}
    with pytest.raises(UserError, match="does not say what the vectors were computed with; start anew"):
        open_array_rows(folder, WORLD, shared=True, key=key_of(model))
    layout = json.loads((folder / LAYOUT).read_text())
    (folder / LAYOUT).write_text(json.dumps({**layout, "key": {"values": 3}}))
    with pytest.raises(DamagedFile):
        ArtifactKey.read(folder)


def test_files_that_changed_since_a_stage_was_finished(tmp_path: Path, model: dict[str, dict[str, Path]]) -> None:
    inside = tmp_path / "run" / "artifacts" / "pretrain" / "model.bin"
    inside.parent.mkdir(parents=True)
    inside.write_text("trained")
    folder = finished(tmp_path, key_of({**model, "trained model": {"model.bin": inside}}))
    stored = json.loads((folder / LAYOUT).read_text())["key"]["files"]
    assert stored["trained model"]["model.bin"][0] == "pretrain/model.bin", "its place in any run"
    there, other = tmp_path / "run" / "artifacts", tmp_path / "other" / "artifacts"
    assert changed_inputs(folder.parent, there, WORLD) == ""
    assert changed_inputs(folder.parent, other, WORLD) == (
        "the vectors there were computed with another trained model (model.bin is gone)"
    )
    (other / "pretrain").mkdir(parents=True)
    (other / "pretrain" / "model.bin").write_text("trained")
    assert changed_inputs(folder.parent, other, WORLD) == ""
    change_last_byte(model["tokenizer"]["tokenizer.json"])
    assert changed_inputs(folder.parent, other, WORLD) == (
        "the vectors there were computed with another tokenizer (tokenizer.json differs)"
    )
    assert changed_inputs(tmp_path / "nothing", other, WORLD) == ""
