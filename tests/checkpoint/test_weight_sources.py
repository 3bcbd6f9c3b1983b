"""Weights on disk, filled into tensors one by one; safetensors in one file and in many."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from samestep.checkpoint.safetensor_files import INDEX, SafetensorsFiles, write_safetensors
from samestep.checkpoint.store import Store
from samestep.checkpoint.weight_files import open_weight_file
from samestep.checkpoint.weight_sources import (
    CheckpointWeights,
    InMemoryWeights,
    LayeredWeights,
    RenamedWeights,
    read_all,
)
from samestep.core.errors import UserError
from samestep.world.world import World

WEIGHTS = {f"w{i}": torch.randn(3, 4, generator=torch.Generator().manual_seed(i)) for i in range(5)}


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


class State:
    def __init__(self, state: dict) -> None:
        self.state_dict = lambda: state
        self.load_state_dict = state.update


def test_every_kind_of_source_gives_the_same(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    write_safetensors(tmp_path / "folder", InMemoryWeights(WEIGHTS), list(WEIGHTS), torch.float32, 100)
    torch.save(WEIGHTS, tmp_path / "w.pt")
    state = {"model": State({"model": WEIGHTS}), "other": State({"x": torch.ones(1), "n": 1})}
    step = Store(tmp_path, World.single()).save(1, state, {})
    sources = [
        SafetensorsFiles(tmp_path / "folder"),
        open_weight_file(tmp_path / "w.pt").source,
        CheckpointWeights(step, "model/model"),
    ]
    for source in sources:
        assert {name: (like.shape, like.dtype) for name, like in source.layout.items()} == {
            name: (weight.shape, weight.dtype) for name, weight in WEIGHTS.items()
        }
        assert same(read_all(source), WEIGHTS)
        halves = {"w3": torch.empty(3, 4, dtype=torch.bfloat16)}
        source.fill(halves)
        assert torch.equal(halves["w3"], WEIGHTS["w3"].bfloat16()), "only what is asked for, in the type of the target"


def test_a_checkpoint_without_such_weights_or_damaged_is_refused(tmp_path: Path) -> None:
    step = Store(tmp_path, World.single()).save(1, {"model": State({"model": WEIGHTS})}, {})
    with pytest.raises(UserError, match="no tensors under 'judge/model'; it has some under model/model"):
        CheckpointWeights(step, "judge/model")
    data = step / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match=r"is damaged: __0_0.distcp does not match its checksum; use another one"):
        CheckpointWeights(step, "model/model")


def test_layered_also_where_one_tensor_has_two_names() -> None:
    zeros = {"w0": torch.zeros_like(WEIGHTS["w0"])}
    source = LayeredWeights(InMemoryWeights(WEIGHTS), InMemoryWeights(zeros))
    assert same(read_all(source), {**WEIGHTS, **zeros})
    tied = torch.ones_like(WEIGHTS["w0"])
    both = LayeredWeights(InMemoryWeights({"w0": WEIGHTS["w0"], "tied": WEIGHTS["w0"]}), InMemoryWeights(zeros))
    both.fill({"w0": tied, "tied": tied})
    assert torch.equal(tied, zeros["w0"]), "what replaces it counts"


def test_renamed() -> None:
    source = RenamedWeights(InMemoryWeights(WEIGHTS), {"a.w0": "w0", "a.w1": "w1"})
    assert same(read_all(source), {"a.w0": WEIGHTS["w0"], "a.w1": WEIGHTS["w1"]})


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    limit=st.integers(1, 200),
    half=st.booleans(),
)
def test_any_weights_are_split_into_files_within_the_limit(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit: int, half: bool
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    dtype = torch.bfloat16 if half else torch.float32
    weights = {f"n{i}": torch.arange(size, dtype=torch.float32) for i, size in enumerate(sizes)}
    files = write_safetensors(folder, InMemoryWeights(weights), list(weights), dtype, limit)
    loaded = [load_file(file) for file in files]
    assert [name for part in loaded for name in sorted(part, key=lambda n: int(n[1:]))] == list(weights), (
        "all, in order"
    )
    for part in loaded:
        assert sum(weight.nbytes for weight in part.values()) <= limit or len(part) == 1
    for before, after in pairwise(loaded):
        first = min(after, key=lambda n: int(n[1:]))
        assert sum(w.nbytes for w in before.values()) + after[first].nbytes > limit, "no file is needlessly small"
    assert (folder / INDEX).exists() == (len(files) > 1)
    assert same(read_all(SafetensorsFiles(folder)), {name: weight.to(dtype) for name, weight in weights.items()})


def sharded(folder: Path) -> Path:
    write_safetensors(folder, InMemoryWeights(WEIGHTS), list(WEIGHTS), torch.float32, 100)
    assert len(list(folder.glob("*.safetensors"))) == 3
    return folder


def test_files_are_readable_by_others_and_index_as_published(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    index = json.loads((sharded(folder) / INDEX).read_text())
    assert index["metadata"] == {"total_size": 5 * 48}
    assert index["weight_map"]["w0"] == "model-00001-of-00003.safetensors"
    assert index["weight_map"]["w4"] == "model-00003-of-00003.safetensors"
    modes = {file.stat().st_mode for file in folder.iterdir()}
    assert len(modes) == 1, "weights and index have the same permissions"


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    file = sharded(tmp_path) / "model-00002-of-00003.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(UserError, match=r"model-00002-of-00003.safetensors cannot be read .*; fetch or copy it again"):
        SafetensorsFiles(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (sharded(tmp_path) / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks model-00002-of-00003.safetensors, which .*index.json names"):
        SafetensorsFiles(tmp_path)


def test_files_and_index_must_agree(tmp_path: Path) -> None:
    sharded(tmp_path)
    save_file({"w4": WEIGHTS["w4"], "w0": WEIGHTS["w0"]}, tmp_path / "model-00003-of-00003.safetensors")
    with pytest.raises(UserError, match=r"w0 is both in .*00001.* and in model-00003-of-00003.safetensors"):
        SafetensorsFiles(tmp_path)
    save_file({"w9": WEIGHTS["w4"]}, tmp_path / "model-00003-of-00003.safetensors")
    with pytest.raises(UserError, match=r"00003-of-00003.safetensors lacks w4, which the index puts there"):
        SafetensorsFiles(tmp_path)
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(UserError, match="is not an index of safetensors files"):
        SafetensorsFiles(tmp_path)


def test_an_index_reaches_no_other_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    save_file(WEIGHTS, tmp_path / "out.safetensors")
    (tmp_path / "in" / INDEX).write_text(json.dumps({"weight_map": {"w0": "../out.safetensors"}}))
    with pytest.raises(UserError, match=r"lacks out.safetensors"):
        SafetensorsFiles(tmp_path / "in")
