"""A rank that cannot write or read: all ranks raise the same error, none hangs, and earlier checkpoints stay."""

import os
import resource
from pathlib import Path

import pytest
import torch
from checkpoint_parts import Part, must_succeed, same_bits, values
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from samestep.checkpoint.store import Store
from samestep.core.errors import RunFailed
from samestep.world.world import World


def state() -> dict[str, Part]:
    return {"model": Part({name: values(name, (100, 100)) for name in ("a", "b", "c", "d")})}


def failing_save(store: Store, step: int) -> str:
    with pytest.raises(RunFailed) as caught:
        store.save(step, state(), {})
    errors = store.world.gather(str(caught.value))
    assert errors == [errors[0]] * store.world.size, "every rank raises the same"
    return str(errors[0])


def disk_full(folder: Path, victim: int) -> None:
    """A file may not grow beyond some size, as on a disk that is full: the write itself fails, in the middle of it."""
    world = World.join(device="cpu")
    store = Store(folder, world)
    store.save(1, state(), {})
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if world.rank == victim:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    text = failing_save(store, 2)
    assert f"step_00000002 failed on rank {victim}: OSError: [Errno 27] File too large" in text
    assert text.count("\n") == 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    if world.is_main:
        assert os.listdir(folder) == ["step_00000001"], "nothing is left of the failed save"
    store.save(3, state(), {})
    newest = store.newest()
    assert newest is not None
    assert newest.step == 3
    world.leave()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_full_disk_on_one_rank(tmp_path: Path, victim: int) -> None:
    must_succeed(disk_full, 2, tmp_path / "store", victim, logs=tmp_path / "logs")


class StrangeError(Exception):
    """An exception that cannot be sent to another process: it does not unpickle."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def strange_error(where: type, name: str, folder: Path) -> None:
    world = World.join(device="cpu")
    store = Store(folder, world)
    store.save(1, state(), {})
    if world.rank == 1:

        def fail(*args: object, **kwargs: object) -> None:
            raise StrangeError("planted", "failure")

        setattr(where, name, fail)
    with pytest.raises(StrangeError if world.rank == 1 else RunFailed, match="planted failure"):
        store.save(2, state(), {})
    world.barrier()
    if world.is_main:
        assert os.listdir(folder) == ["step_00000001"]
    world.leave()


@pytest.mark.parametrize(
    ("where", "name"), [(FileSystemWriter, "_write_data"), (DefaultSavePlanner, "create_local_plan")]
)
def test_an_error_of_one_rank_does_not_hang_the_others(where: type, name: str, tmp_path: Path) -> None:
    """Whether it comes while tensors are written, or before."""
    must_succeed(strange_error, 2, where, name, tmp_path / "store", logs=tmp_path / "logs")


def folder_in_the_way(folder: Path) -> None:
    world = World.join(device="cpu")
    store = Store(folder, world)
    store.save(1, state(), {})
    if world.is_main:  # the renaming fails, after all is written: a folder cannot replace a file
        (folder / "step_00000002").write_text("in the way")
        (folder / ".replaced_step_00000002").write_text("in the way")
    text = failing_save(store, 2)
    assert "failed on rank 0: " in text
    newest = store.newest()
    assert newest is not None
    assert newest.step == 1
    blank = {"model": Part({name: torch.zeros(100, 100) for name in ("a", "b", "c", "d")})}
    store.load(newest, blank)
    assert all(same_bits(tensor, values(name, (100, 100))) for name, tensor in blank["model"].state.items())
    world.leave()


def test_a_commit_that_fails_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    must_succeed(folder_in_the_way, 2, tmp_path / "store", logs=tmp_path / "logs")
    assert not (tmp_path / "store" / ".staging_step_00000002").exists()


def unreadable_on_one_rank(folder: Path) -> None:
    world = World.join(device="cpu")
    store = Store(folder, world)
    store.save(1, state(), {})
    newest = store.newest()
    assert newest is not None
    world.barrier()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if world.rank == 1:  # this rank alone can open no further file
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    with pytest.raises(RunFailed, match=r"loading the checkpoint .* failed on rank 1: OSError: .*Too many open files"):
        store.load(newest, state())
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    store.load(newest, state())
    world.leave()


def test_one_rank_that_cannot_read_stops_all(tmp_path: Path) -> None:
    must_succeed(unreadable_on_one_rank, 2, tmp_path / "store", logs=tmp_path / "logs")
