"""Saving and loading in one process: any tensor, any number, and an error message for everything that is refused."""

import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from checkpoint_parts import Part, RankedPart, bits, same_bits, values
from torch import nn

from samestep.checkpoint import commit, metadata
from samestep.checkpoint.files import FileRecord
from samestep.checkpoint.loading import read_tensors
from samestep.checkpoint.manifest import Manifest, find_checkpoints, read_manifest, verify, write_manifest
from samestep.checkpoint.retention import Retention
from samestep.checkpoint.state import Stateful
from samestep.checkpoint.store import Store
from samestep.checkpoint.tensors import LARGE
from samestep.core.errors import RunFailed, UserError
from samestep.world.world import World

DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "complex64",
    "complex128",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
]


def store_at(folder: Path, **options: object) -> Store:
    return Store(folder, World.single(), **options)  # type: ignore[arg-type]


def reload(store: Store, state: Mapping[str, Stateful]) -> None:
    checkpoint = store.newest()
    assert checkpoint is not None
    store.load(checkpoint, state)


def any_bits(name: str, dtype: torch.dtype, count: int) -> torch.Tensor:
    """Tensors of any bit pattern, so also of every kind of nan."""
    seed = sum(name.encode())
    high = 2 if dtype == torch.bool else 256
    raw = torch.randint(
        0, high, (count * dtype.itemsize,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    return raw.view(dtype)


def test_every_type_and_shape_comes_back_bit_for_bit(tmp_path: Path) -> None:
    saved: dict[str, torch.Tensor] = {}
    for name in DTYPES:
        saved[name] = any_bits(name, getattr(torch, name), 12).reshape(3, 4)
        saved[f"{name} 0-dim"] = saved[name][1, 1]
        saved[f"{name} empty"] = saved[name][:0]
        saved[f"{name} transposed"] = saved[name].t()
        saved[f"{name} strided"] = saved[name][:, ::2]
        saved[f"{name} expanded"] = saved[name][:, :1].expand(3, 5)
    blank = Part({name: torch.zeros(t.shape, dtype=torch.uint8).to(t.dtype) for name, t in saved.items()})
    addresses = {name: t.data_ptr() for name, t in blank.state.items()}
    store = store_at(tmp_path)
    store.save(1, {"part": Part(saved)}, {})
    reload(store, {"part": blank})
    assert [name for name in saved if not same_bits(saved[name], blank.state[name])] == []
    assert {name: t.data_ptr() for name, t in blank.state.items()} == addresses, (
        "loading fills the tensors that were there"
    )


def test_every_number_and_key_comes_back(tmp_path: Path) -> None:
    numbers = [math.inf, -math.inf, math.nan, -0.0, 5e-324, 1 / 3, 1.7976931348623157e308, 2**63, -(10**40), 0.1 + 0.2]
    keys = {"a/b": 1, "a.b": {"~": 2, "~1": 3, "": 4}, "é\ud800\n": None, "tuple": (1, (2,)), "empty": {}, "no": False}
    store = store_at(tmp_path)
    store.save(
        1, {"x/y": RankedPart({"numbers": numbers, "keys": keys, "t/~": torch.ones(2)}, own=numbers)}, {"n": numbers}
    )
    blank = RankedPart({"t/~": torch.zeros(2)}, own=None)
    reload(store, {"x/y": blank})
    assert repr(blank.state["numbers"]) == repr(numbers)
    assert repr(blank.loaded) == repr([numbers])
    assert blank.state["keys"] == {**keys, "tuple": [1, [2]]}
    assert torch.equal(blank.state["t/~"], torch.ones(2))
    checkpoint = store.newest()
    assert checkpoint is not None
    assert repr(checkpoint.about["n"]) == repr(numbers)


def test_a_module_and_its_optimizer(tmp_path: Path) -> None:
    class Learner:
        def __init__(self, seed: int) -> None:
            torch.manual_seed(seed)
            self.module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
            self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1 * seed, momentum=0.9)
            self.module(torch.randn(5, 3)).sum().backward()
            self.optimizer.step()

        def state_dict(self) -> dict:
            found = self.optimizer.state_dict()
            found["state"] = {str(key): value for key, value in found["state"].items()}
            return {"module": self.module.state_dict(), "optimizer": found}

        def load_state_dict(self, state: dict) -> None:
            self.module.load_state_dict(state["module"])
            moments = {int(key): value for key, value in state["optimizer"]["state"].items()}
            self.optimizer.load_state_dict({**state["optimizer"], "state": moments})

    one, other = Learner(1), Learner(2)
    store = store_at(tmp_path)
    store.save(5, {"learner": one}, {})
    reload(store, {"learner": other})
    for mine, theirs in zip(one.module.state_dict().values(), other.module.state_dict().values()):
        assert same_bits(mine, theirs)
    assert other.optimizer.param_groups[0]["lr"] == 0.1
    weights = read_tensors(tmp_path / "step_00000005", "learner/module")
    assert all(same_bits(weights[name], tensor) for name, tensor in one.module.state_dict().items())


STATE = {"w": torch.ones(2, 3), "b": torch.ones(3), "n": 1}


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"w": torch.ones(2, 3), "b": torch.ones(3), "c": torch.ones(1)}, r"it has no tensor 'model/c';"),
        ({"w": torch.ones(2, 3)}, r"it has a tensor 'model/b' that is not asked for;"),
        ({"w": torch.ones(3, 2), "b": torch.ones(3)}, r"'model/w' has shape \(2, 3\) instead of \(3, 2\);"),
        (
            {"w": torch.ones(2, 3), "b": torch.ones(3).half()},
            r"'model/b' has type torch.float32 instead of torch.float16;",
        ),
        ({"x": torch.ones(2, 3), "n": 3}, r"it has no tensor 'model/x' \(and 2 more differences\)"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path: Path, wanted: dict, sentence: str) -> None:
    store = store_at(tmp_path)
    store.save(1, {"model": Part(STATE)}, {})
    before = {name: bits(t).clone() for name, t in wanted.items() if isinstance(t, torch.Tensor)}
    with pytest.raises(UserError, match=f"is of another model: .*{sentence}.*load it with the model"):
        reload(store, {"model": Part(wanted)})
    assert all(torch.equal(bits(wanted[name]), raw) for name, raw in before.items()), "nothing was overwritten"


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["model", "ema"], "it has no 'ema'"),
        ([], "it has 'model', which is not asked for"),
        (["model", "rng"], "no rank state"),
    ],
)
def test_parts_must_be_the_same(tmp_path: Path, names: list[str], sentence: str) -> None:
    store = store_at(tmp_path)
    saved = {"model": Part(dict(STATE)), **({"rng": Part({})} if "rng" in names else {})}
    store.save(1, saved, {})
    wanted = {name: RankedPart({}, None) if name == "rng" else Part(dict(STATE)) for name in names}
    with pytest.raises(UserError, match=sentence):
        reload(store, wanted)


def test_a_newer_format_is_refused_and_never_removed(tmp_path: Path) -> None:
    store = store_at(tmp_path, keep=Retention(keep_last=1, keep_best=0))
    newer = store.save(2, {"model": Part(STATE)}, {})
    found = read_manifest(newer)
    write_manifest(newer, Manifest(2, 1, found.files, {}, format=7))
    for ask in (store.newest, store.best, store.checkpoints, lambda: read_tensors(newer, "model")):
        with pytest.raises(UserError, match="has format 7 and this version of samestep reads formats up to 1"):
            ask()
    assert "format 7" in str(verify(newer))
    store.save(3, {"model": Part(STATE)}, {})
    assert newer.exists()


def test_retention_on_disk_and_the_best_one(tmp_path: Path) -> None:
    store = store_at(tmp_path, keep=Retention(keep_last=1, keep_best=1, mode="max"))
    assert store.newest() is None
    assert store.best() is None
    assert store.checkpoints() == []
    for step, metric in ((1, 0.5), (2, 0.9), (3, math.nan), (4, None)):
        store.save(step, {"model": Part(STATE)}, {"metric": metric})
    assert sorted(os.listdir(tmp_path)) == ["step_00000002", "step_00000004"]
    newest, best = store.newest(), store.best()
    assert newest is not None
    assert best is not None
    assert (newest.step, best.step, best.metric) == (4, 2, 0.9)
    assert [(c.step, c.verified, c.damage) for c in store.checkpoints()] == [(2, True, None), (4, True, None)]


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    for value in (1.0, 2.0):
        store.save(7, {"model": Part({"w": torch.full((2,), value)})}, {})
    assert os.listdir(tmp_path) == ["step_00000007"]
    assert torch.equal(read_tensors(tmp_path / "step_00000007", "model")["w"], torch.full((2,), 2.0))


def test_left_over_folders_do_not_count_and_are_removed(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    intact = store.save(1, {"model": Part(STATE)}, {})
    for name in (".staging_step_00000002", ".deleting_step_00000003", ".replaced_step_00000001"):
        os.makedirs(tmp_path / name)
        (tmp_path / name / "manifest.json").write_bytes((intact / "manifest.json").read_bytes())
    assert [c.step for c in find_checkpoints(tmp_path)] == [1]
    store.remove_leftovers()
    assert os.listdir(tmp_path) == ["step_00000001"]
    assert verify(intact) is None


def test_removal_that_is_cut_short_leaves_nothing_that_looks_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(tmp_path)
    for step in (2, 3):
        store.save(step, {"model": Part(STATE)}, {})

    def cut_short(path: Path) -> None:
        if path.exists():
            (path / "state.json").unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(commit, "remove_folder", cut_short)
    with pytest.raises(KeyboardInterrupt):
        commit.remove_checkpoints([tmp_path / "step_00000002"])
    assert [c.step for c in find_checkpoints(tmp_path)] == [3]


def test_a_checkpoint_that_could_not_be_read_again_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "_ALLOWED", frozenset())  # as if another torch wrote other classes
    with pytest.raises(UserError, match=r"names torch.distributed.checkpoint.metadata.Metadata, which samestep never"):
        store_at(tmp_path).save(1, {"model": Part(STATE)}, {})
    assert os.listdir(tmp_path) == []


def test_a_replaced_checkpoint_counts_until_its_successor_is_there(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    store.save(1, {"model": Part(STATE)}, {})
    os.rename(tmp_path / "step_00000001", tmp_path / ".replaced_step_00000001")
    newest = store.newest()
    assert newest is not None
    assert newest.step == 1
    store.remove_leftovers()
    assert os.listdir(tmp_path) == ["step_00000001"]
    assert verify(tmp_path / "step_00000001") is None


def test_a_failing_save_leaves_the_earlier_checkpoint_alone(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.write_text("a file where the folder should be")
    with pytest.raises(
        RunFailed, match=r"saving the checkpoint .*store/step_00000001 failed on rank 0: NotADirectoryError"
    ):
        store_at(folder).save(1, {"model": Part(STATE)}, {})
    assert folder.read_text() == "a file where the folder should be"


def test_the_same_state_makes_the_same_files(tmp_path: Path) -> None:
    def files(name: str) -> dict[str, FileRecord]:
        state = {"model": RankedPart({"w": values("w", (3, 4)), "lr": 0.1}, own=[1])}
        return read_manifest(store_at(tmp_path / name).save(1, state, {})).files

    assert files("one") == files("two")


def test_saving_and_loading_print_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = store_at(tmp_path)
        store.save(1, {"model": Part(STATE)}, {})
        reload(store, {"model": Part({"w": torch.zeros(2, 3), "b": torch.zeros(3)})})
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_the_manifest_is_readable_by_anybody(tmp_path: Path) -> None:
    path = store_at(tmp_path).save(12, {"model": Part(STATE)}, {"config": {"lr": 0.5}})
    found = json.loads((path / "manifest.json").read_text())
    assert found["format"] == 1
    assert found["step"] == 12
    assert found["world_size"] == 1
    assert found["about"] == {"config": {"lr": 0.5}}
    assert {"samestep", "torch", "python"} <= found["versions"].keys()
    assert set(found["files"]) | {"manifest.json", "manifest.sha256"} == set(os.listdir(path))


def test_reading_tensors_of_an_unknown_part_names_those_there_are(tmp_path: Path) -> None:
    path = store_at(tmp_path).save(1, {"model": Part(STATE), "ema": Part(STATE)}, {})
    with pytest.raises(UserError, match="no tensors under 'modle'; it has some under ema, model"):
        read_tensors(path, "modle")


def test_large_tensors_are_hashed_while_they_are_written(tmp_path: Path) -> None:
    large = {"a": values("a", (700, 800)), "b": values("b", (900, 500)), "c": values("c", (3,))}
    assert large["a"].nbytes > LARGE
    store = store_at(tmp_path)
    assert verify(store.save(1, {"model": Part(large)}, {})) is None
    blank = Part({name: torch.zeros_like(tensor) for name, tensor in large.items()})
    reload(store, {"model": blank})
    assert all(same_bits(blank.state[name], tensor) for name, tensor in large.items())
