"""Array artifacts in one process: what is stored, what is refused, and that they appear complete or not at all."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samestep.checkpoint.store import Store
from samestep.core.errors import UserError
from samestep.train.artifacts.array_format import BLOCK, BLOCKS, ArrayLayout, digest_of
from samestep.train.artifacts.array_rows import ArrayRows, open_array_rows, require_shared
from samestep.train.artifacts.array_writer import ArrayArtifact, check_array_artifact
from samestep.train.record.progress import Tick
from samestep.train.record.stop import Stop
from samestep.train.session.hooks.step_start import StepStart
from samestep.world.rank_discovery import RankInfo
from samestep.world.seeding import RandomState
from samestep.world.world import World

TYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
WORLD = World.single()


class Steps:
    """The step that the loop is at."""

    now = 0


def artifact(folder: Path, rows: int = 6, resumed: bool = False, steps: Steps | None = None, **fields: Any) -> Any:
    fields = fields or {"a": ((2,), "float32"), "b": ((), "int64")}
    layout = ArrayLayout.make("out", rows, fields, proof=False)
    steps = steps or Steps()
    return ArrayArtifact(folder / "out", layout, WORLD, step=lambda: steps.now, resumed=resumed)


def values(indices: list[int]) -> dict[str, torch.Tensor]:
    numbers = torch.tensor(indices)
    return {"a": torch.stack([numbers, -numbers], 1).float(), "b": numbers * 10}


def test_rows_of_every_type_come_back_as_they_were(tmp_path: Path) -> None:
    made = artifact(tmp_path, 5, **{kind: ((2, 3), kind) for kind in TYPES})
    wanted = {kind: (torch.arange(30).reshape(5, 2, 3) * 0.7).to(getattr(torch, kind)) for kind in TYPES}
    for chosen in ([3, 4, 0], [2], [1]):
        made.write(np.array(chosen), {kind: value[chosen] for kind, value in wanted.items()})
    made.finish()
    rows = open_array_rows(tmp_path / "out", WORLD, shared=True)
    assert len(rows) == 5 and len(list(rows)) == 5
    for kind, value in wanted.items():
        found = rows.rows([4, 1])[kind]
        assert found.dtype == value.dtype and torch.equal(found, value[[4, 1]])
        assert torch.equal(rows[-1][kind], value[4])
    assert np.array_equal(np.load(tmp_path / "out" / "float32.npy"), wanted["float32"].numpy())


def test_a_proof_in_float64_stores_float64() -> None:
    layout = ArrayLayout.make("out", 1, {"a": ((), "bfloat16"), "b": ((), "int8")}, proof=True)
    assert [field.dtype for field in layout.fields.values()] == ["float64", "int8"]


def test_it_appears_only_when_every_row_is_there(tmp_path: Path) -> None:
    made = artifact(tmp_path)
    made.write(np.array([0, 1, 5]), values([0, 1, 5]))
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match=r"3 of the 6 rows .* were never written \(2, 3, 4\); write each row"):
        made.finish()
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="has left no array artifact 'out'; there is none in"):
        open_array_rows(tmp_path / "out", WORLD, shared=True)
    made.write(np.array([2, 3, 4]), values([2, 3, 4]))
    made.finish()
    assert torch.equal(ArrayRows(tmp_path / "out").rows(range(6))["b"], torch.arange(6) * 10)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_rows_that_are_written_twice_are_refused(tmp_path: Path) -> None:
    made = artifact(tmp_path)
    for chosen in ([0, 1, 2, 3], [3, 4, 5]):
        made.write(np.array(chosen), values(chosen))
    with pytest.raises(UserError, match="7 rows were written into the array artifact 'out', which has 6"):
        made.finish()


def test_a_resume_forgets_rows_after_its_checkpoint(tmp_path: Path) -> None:
    steps = Steps()
    made = artifact(tmp_path, steps=steps)
    made.write(np.array([0, 1]), values([0, 1]))
    steps.now = 1  # the first step is done
    saved, counted = made.state_dict(), made.rank_state()
    made.write(np.array([2, 3]), values([2, 3]))

    resumed = artifact(tmp_path, resumed=True, steps=steps)
    resumed.load_state_dict(saved)
    resumed.load_rank_state([counted])
    with pytest.raises(UserError, match=r"\(2, 3, 4, 5\)"):
        resumed.finish()
    resumed.write(np.array([2, 3, 4, 5]), values([2, 3, 4, 5]))
    resumed.finish()

    # Killed after it appeared and before the stage was done: the same checkpoint continues it.
    again = artifact(tmp_path, resumed=True, steps=steps)
    again.load_state_dict(saved)
    again.load_rank_state([1, 1])  # as another number of ranks counted them
    assert not (tmp_path / "out").exists()
    again.write(np.array([2, 3, 4, 5]), values([2, 3, 4, 5]))
    again.finish()
    assert torch.equal(ArrayRows(tmp_path / "out").rows(range(6))["b"], torch.arange(6) * 10)


def test_rows_are_synced_when_a_checkpoint_is_taken_and_not_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, stop, synced = artifact(tmp_path), Stop(WORLD), []
    generators = RandomState(WORLD, 0)
    monkeypatch.setattr("os.fsync", synced.append)
    stop.is_checked_inside = True
    step_start = StepStart(stop, {"artifact out": made, "random": generators}, generators, WORLD)
    for row in range(3):
        made.write(np.array([row]), values([row]))
        step_start.after_step(Tick(row, 0, False), {}, False)
    assert synced == []
    Store(tmp_path / "checkpoints", WORLD).take_snapshot(3, {"artifact out": made}, {})
    assert len(synced) == 3, "two fields, and the steps"


def test_a_fresh_start_replaces_what_is_there_and_a_resume_needs_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the rows that were written so far for the array artifact 'out' are gone"):
        artifact(tmp_path, resumed=True)
    artifact(tmp_path).write(np.array([0]), values([0]))
    with pytest.raises(UserError, match=r"was begun with 6 rows and the fields a .* and has 7 rows"):
        artifact(tmp_path, rows=7, resumed=True)
    artifact(tmp_path, rows=7)
    assert ArrayLayout.read(tmp_path / ".out.partial").rows == 7  # type: ignore[union-attr]


def test_damage_is_found(tmp_path: Path) -> None:
    made = artifact(tmp_path)
    made.write(np.arange(6), values(list(range(6))))
    made.finish()
    path = tmp_path / "out" / "a.npy"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"out is damaged: a.npy is not what was written; restore the folder"):
        open_array_rows(tmp_path / "out", WORLD, shared=True)
    path.unlink()
    with pytest.raises(UserError, match=r"a.npy cannot be read \(No such file"):
        open_array_rows(tmp_path / "out", WORLD, shared=True)
    (tmp_path / "out" / "arrays.json").write_text("{")
    with pytest.raises(UserError, match=r"arrays.json cannot be read"):
        open_array_rows(tmp_path / "out", WORLD, shared=True)


def test_of_a_large_file_blocks_are_hashed(tmp_path: Path) -> None:
    path, size = tmp_path / "large", BLOCK * BLOCKS * 2
    path.write_bytes(bytes(size))
    found = {digest_of(path)}
    for at in (0, size - 1):
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(b"x")
        found.add(digest_of(path))
    with open(path, "ab") as file:
        file.write(b"x")
    assert len(found | {digest_of(path)}) == 4


def test_a_disk_that_is_too_small_is_refused_with_the_sizes(tmp_path: Path) -> None:
    sentence = r"with 'out', need 14,901,161.19 GiB, but the disk of .* has [\d,.]+ GiB free; free some, or set out="
    with pytest.raises(UserError, match=sentence):
        artifact(tmp_path, 10**15, a=((3,), "float32"))
    assert not list(tmp_path.iterdir())


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    made = artifact(tmp_path)
    good = values([0, 1])
    for indices, given, sentence in (
        ([0, 6], good, "there is no row 6 in the array artifact 'out', which has 6"),
        ([-1, 0], good, "there is no row -1"),
        ([0], good, r"'a' of the array artifact 'out' takes \(1, 2\) of torch.float32 for 1 rows, but got \(2, 2\)"),
        ([0, 1], {**good, "b": good["b"].float()}, r"takes \(2,\) of torch.int64"),
        ([0, 1], {"a": good["a"]}, "has the fields a, b, but a was given"),
    ):
        with pytest.raises(UserError, match=sentence):
            made.write(np.array(indices), given)
    for fields in ({"a/b": ((), "int8")}, {"a": ((0,), "int8")}, {"a": ((), "complex64")}):
        with pytest.raises(UserError, match="cannot have shape"):
            ArrayLayout.make("out", 1, fields, proof=False)
    with pytest.raises(UserError, match="at least one row"):
        ArrayLayout.make("out", 0, {"a": ((), "int8")}, proof=False)


def test_where_it_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="once, where the stage is built"):
        check_array_artifact("out", ["out"], is_built=False)
    with pytest.raises(UserError, match="once, where the stage is built"):
        check_array_artifact("out", [], is_built=True)
    two = World(RankInfo("test", size=2), torch.device("cpu"))
    with pytest.raises(UserError, match=r"do not all see that folder; set out=... to a folder on a shared disk"):
        require_shared(tmp_path, two, shared=False)
    require_shared(tmp_path, WORLD, shared=False)
