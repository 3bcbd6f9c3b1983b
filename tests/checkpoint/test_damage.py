"""Damage to any file of a checkpoint is found and logged, and the checkpoint before it is used."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint_parts import Part, must_succeed, same_bits, values

from samestep.checkpoint.loading import read_tensors
from samestep.checkpoint.manifest import Checkpoint, verify
from samestep.checkpoint.retention import Retention
from samestep.checkpoint.store import Store
from samestep.core.errors import UserError
from samestep.world.world import World

FILES = (".metadata", "__0_0.distcp", "__1_0.distcp", "state.json", "ranks.json", "manifest.json", "manifest.sha256")
STEPS = (1, 2)


def state(step: int) -> dict[str, Part]:
    tensors = {name: values(f"{name}{step}", (4, 2 + step)) for name in ("a", "b")}
    return {"model": Part(tensors), "other": Part({"step": step})}


class Ranked(Part):
    def rank_state(self) -> int:
        return int(self.state["step"])

    def load_rank_state(self, states: list) -> None:
        pass


def save_two(folder: Path) -> None:
    world = World.join(device="cpu")
    for step in STEPS:
        Store(folder, world).save(step, {**state(step), "ranked": Ranked({"step": step})}, {})
    world.leave()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    must_succeed(save_two, 2, folder / "store", logs=folder / "logs")
    return folder / "store"


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "store"))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    assert path.stat().st_size > 0
    os.truncate(path, 0)


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def swap_with_older(path: Path) -> None:
    """The file of the other checkpoint in its place, as a careless restore would do."""
    older = path.parent.parent / "step_00000001" / path.name
    assert older.read_bytes() != path.read_bytes()
    path.write_bytes(older.read_bytes())


def swap_with_neighbour(path: Path) -> None:
    other = path.with_name(FILES[FILES.index(path.name) - 1])
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)


def flip(where: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[int(where * (len(data) - 1))] ^= 1
        path.write_bytes(data)

    damage.__name__ = f"flip_at_{where}"
    return damage


DAMAGES = (truncate, empty, grow, os.unlink, swap_with_older, swap_with_neighbour, flip(0), flip(0.5), flip(1))


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", FILES)
def test_every_damage_to_every_file_is_found(
    copy: Path, name: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    newest = copy / "step_00000002"
    assert set(os.listdir(newest)) == set(FILES)
    assert verify(newest) is None
    damage(newest / name)
    reason = verify(newest)
    assert reason is not None
    if damage is not swap_with_neighbour and not name.startswith("manifest"):
        assert reason.startswith(f"{name} ")
    with caplog.at_level(logging.WARNING, "samestep.checkpoint"):
        found = Store(copy, World.single()).newest()
    assert found is not None
    assert found.step == 1
    assert found.verified
    assert [record.getMessage() for record in caplog.records] == [
        f"the checkpoint {newest} is damaged and not used: {reason}"
    ]
    assert all(
        same_bits(tensor, state(1)["model"].state[key]) for key, tensor in read_tensors(found.path, "model").items()
    )
    with pytest.raises(UserError, match=r"is damaged: .*; use another one"):
        read_tensors(newest, "model")


def test_every_single_bit_of_the_manifest_counts(copy: Path) -> None:
    for name in ("manifest.json", "manifest.sha256"):
        path = copy / "step_00000002" / name
        intact = path.read_bytes()
        for offset in range(0, len(intact), 7):
            path.write_bytes(intact[:offset] + bytes([intact[offset] ^ 0x20]) + intact[offset + 1 :])
            assert verify(path.parent) is not None, (name, offset)
        path.write_bytes(intact)
    assert verify(copy / "step_00000002") is None


def test_the_manifest_of_another_step_is_refused(copy: Path) -> None:
    shutil.rmtree(copy / "step_00000002")
    shutil.copytree(copy / "step_00000001", copy / "step_00000002")
    assert verify(copy / "step_00000002") == "manifest.json is that of step 1"


def test_an_extra_file_does_no_harm(copy: Path) -> None:
    (copy / "step_00000002" / "notes.txt").write_text("kept for the paper")
    assert verify(copy / "step_00000002") is None


def test_damage_shows_in_the_list(copy: Path) -> None:
    truncate(copy / "step_00000001" / "state.json")
    found = Store(copy, World.single()).checkpoints()
    assert [(c.step, c.verified, c.damage is None) for c in found] == [(1, False, False), (2, True, True)]
    assert "state.json has" in str(found[0].damage)


def test_when_all_are_damaged_the_run_does_not_start_over_by_itself(copy: Path) -> None:
    for step in STEPS:
        os.unlink(copy / f"step_{step:08d}" / "manifest.json")
    with pytest.raises(
        UserError, match=r"step_00000002: manifest.json is missing; step_00000001: .*start the stage over"
    ):
        Store(copy, World.single()).newest()


def test_a_damaged_one_does_not_count_among_those_kept(copy: Path) -> None:
    truncate(copy / "step_00000002" / "state.json")
    store = Store(copy, World.single(), keep=Retention(keep_last=2, keep_best=0))
    assert store.newest() is not None
    store.save(3, state(3), {})
    assert sorted(os.listdir(copy)) == ["step_00000001", "step_00000003"]


def test_a_checkpoint_found_without_being_verified_is_verified_before_it_is_loaded(copy: Path) -> None:
    path = copy / "step_00000002"
    flip(0.5)(path / "__0_0.distcp")
    blank = {"model": Part({name: torch.zeros(4, 4) for name in ("a", "b")}), "other": Part({}), "ranked": Ranked({})}
    with pytest.raises(UserError, match=r"__0_0.distcp does not match its checksum"):
        Store(copy, World.single()).load(Checkpoint(path, 2, None), blank)
    assert not blank["model"].state["a"].any()
