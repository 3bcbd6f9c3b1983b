"""Background saves that fail: logged at once, cleaned up, retried, and after too many failures the run ends."""

import logging
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from checkpoint_parts import Part, must_succeed, run_ranks, same_bits, values

from samestep.checkpoint import commit as commit_module
from samestep.checkpoint.background import PendingSave, Saver
from samestep.checkpoint.commit import make_empty_folder
from samestep.checkpoint.store import Store
from samestep.core.errors import RunFailed
from samestep.world.messages import Tampered
from samestep.world.world import World

SHAPE = (100, 100)


def state(step: int) -> dict[str, Part]:
    return {"model": Part({name: values(f"{name}{step}", SHAPE) for name in ("a", "b", "c", "d")})}


def loaded(store: Store) -> int:
    """The step of the newest checkpoint, every bit of it compared."""
    found = store.newest()
    assert found is not None
    blank = {"model": Part({name: torch.zeros(SHAPE) for name in ("a", "b", "c", "d")})}
    store.load(found, blank)
    assert all(
        same_bits(tensor, state(found.step)["model"].state[name]) for name, tensor in blank["model"].state.items()
    )
    return found.step


class Recorder(logging.Handler):
    """The log messages of this rank, and the saves that ended."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.ended: list[tuple[int, bool, bool]] = []
        logging.getLogger("samestep.checkpoint").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def on_end(self, save: PendingSave) -> None:
        self.ended.append((save.step, save.committed, save.failure is not None))


@contextmanager
def limited_file_size() -> Iterator[None]:
    """No file of this process may grow beyond some size, so that writing fails in the middle, as on a full disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def recovering(folder: Path, victim: int) -> None:
    world, recorder = World.join(device="cpu"), Recorder()
    store = Store(folder, world)
    with Saver(store, max_failures=2, on_end=recorder.on_end) as saver:
        saver.save(1, state(1), {})
        for first in (2, 4):  # one failure, one success, twice: failures count only in a row
            saver.wait()
            if world.rank == victim:
                with limited_file_size():
                    saver.save(first, state(first), {})
                    saver.wait()
            else:
                saver.save(first, state(first), {})
                saver.wait()
            if world.is_main:
                assert not list(folder.glob(".*")), "nothing is left of a save that failed"
            assert world.gather("training goes on") == ["training goes on"] * world.size
            saver.save(first + 1, state(first + 1), {})
        saver.finish(5, state(5), {})
    assert recorder.ended == [(1, True, False), (2, False, True), (3, True, False), (4, False, True), (5, True, False)]
    assert loaded(store) == 5
    if world.is_main:
        assert len(recorder.messages) == 2
        assert f"step_00000002 failed on rank {victim}: OSError: [Errno 27] File too large" in recorder.messages[0]
        assert recorder.messages[0].endswith("; training goes on, and the next save tries again")
    else:
        assert recorder.messages == []
    world.leave()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_full_disk_is_reported_and_the_next_save_tries_again(tmp_path: Path, victim: int) -> None:
    logs = tmp_path / "logs"
    must_succeed(recovering, 2, tmp_path / "store", victim, logs=logs)


def giving_up(folder: Path) -> None:
    world, recorder = World.join(device="cpu"), Recorder()
    store = Store(folder, world)
    with pytest.raises(RunFailed) as caught, Saver(store, max_failures=3) as saver:  # noqa: PT012
        saver.save(1, state(1), {})
        saver.wait()
        if world.is_main:
            os.rename(folder, folder.with_name("aside"))
            folder.write_text("in its place")
        for step in range(2, 10):
            reached = step
            saver.save(step, state(step), {})
    assert reached == 5, "the fourth save after three failures"
    errors = world.gather(str(caught.value))
    assert errors == [errors[0]] * world.size, "every rank raises the same"
    assert "step_00000004 failed on rank 0: NotADirectoryError" in errors[0]
    assert "(3 failures in a row); earlier checkpoints are untouched, so free some space or fix the disk" in errors[0]
    if world.is_main:
        assert [message.rpartition("; ")[2] for message in recorder.messages] == [
            *["training goes on, and the next save tries again"] * 2,
            "the run will stop at its next save",
        ]
        os.unlink(folder)
        os.rename(folder.with_name("aside"), folder)
    assert loaded(store) == 1
    world.leave()


def test_too_many_failures_in_a_row_end_the_run_on_all_ranks_alike(tmp_path: Path) -> None:
    must_succeed(giving_up, 2, tmp_path / "store", logs=tmp_path / "logs")


def vanishing(folder: Path) -> None:
    world, recorder = World.join(device="cpu"), Recorder()
    vanishes = [True]

    def vanish(phase: str) -> None:
        if phase == "staged" and world.is_main and vanishes:
            vanishes.clear()
            shutil.rmtree(folder)
        if phase == "staged":
            saver._store.world.barrier()

    store = Store(folder, world, on_phase=vanish)
    with Saver(store) as saver:
        saver.save(1, state(1), {})
        saver.wait()
        saver.finish(2, state(2), {})
    assert loaded(store) == 2
    if world.is_main:
        assert "failed on rank 0: FileNotFoundError" in recorder.messages[0]
        assert recorder.messages[1:] == [
            f"the folder {folder} had vanished with the checkpoints in it; it was made again"
        ]
    world.leave()


def test_a_folder_that_vanishes_is_made_again(tmp_path: Path) -> None:
    must_succeed(vanishing, 2, tmp_path / "store", logs=tmp_path / "logs")


def last_save(folder: Path, fixed_at: int) -> None:
    world = World.join(device="cpu")
    tries: list[int] = []

    def make_or_fail(staging: Path) -> None:
        tries.append(len(tries) + 1)
        if tries[-1] < fixed_at:
            raise OSError(28, "No space left on device")
        make_empty_folder(staging)

    commit_module.make_empty_folder = make_or_fail
    store = Store(folder, world)
    if fixed_at <= 3:
        with Saver(store, max_failures=3, pause=0.01) as saver:
            saver.finish(7, state(7), {})
        assert loaded(store) == 7
    else:
        sentence = r"failed on rank 0: OSError: \[Errno 28\] No space left on device \(3 failures in a row\); earlier"
        with pytest.raises(RunFailed, match=sentence), Saver(store, max_failures=3, pause=0.01) as saver:
            saver.finish(7, state(7), {})
    assert len(tries) == (min(fixed_at, 3) if world.is_main else 0)
    world.barrier()
    world.leave()


@pytest.mark.parametrize("fixed_at", [1, 3, 4])
def test_the_last_save_is_tried_again_and_must_succeed(tmp_path: Path, fixed_at: int) -> None:
    assert run_ranks(last_save, 2, tmp_path / "store", fixed_at, logs=tmp_path / "logs") == [0, 0]


def afterwards(folder: Path) -> None:
    world = World.join(device="cpu")
    recorder, calls = Recorder(), []

    def after_commit(checkpoint: Path) -> None:
        calls.append(checkpoint.name)
        assert checkpoint.is_dir(), "it comes after the commit"
        if len(calls) == 1:
            raise OSError(28, "No space left on device")

    with Saver(Store(folder, world), on_end=recorder.on_end) as saver:
        saver.save(1, state(1), {}, after_commit)
        saver.save(2, state(2), {}, after_commit)
        saver.finish(2, state(2), {}, after_commit)
    assert recorder.ended == [(1, True, True), (2, True, False)], "the checkpoint is kept, and the failure counts"
    assert calls == (["step_00000001", "step_00000002"] if world.is_main else [])
    world.leave()


def test_a_failure_after_the_commit_counts_like_a_failed_save(tmp_path: Path) -> None:
    assert run_ranks(afterwards, 2, tmp_path / "store", logs=tmp_path / "logs") == [0, 0]


NOBODY = 65534


def denied(folder: Path) -> None:
    """Write permission is lost during training, and comes back."""
    world, recorder = World.join(device="cpu"), Recorder()
    if os.geteuid() == 0:  # root cannot lose the right
        with Saver(Store(folder / "before", world)) as saver:  # what it imports, nobody may not be able to read
            saver.finish(1, state(1), {})
        os.seteuid(NOBODY)
    store = Store(folder / "store", world)
    with Saver(store, on_end=recorder.on_end) as saver:
        saver.save(1, state(1), {})
        saver.wait()
        world.barrier()
        if world.is_main:
            (folder / "store").chmod(0o500)
        world.barrier()
        saver.save(2, state(2), {})
        saver.wait()
        world.barrier()
        if world.is_main:
            (folder / "store").chmod(0o700)
            assert sorted(os.listdir(folder / "store")) == ["step_00000001"]
        world.barrier()
        saver.finish(3, state(3), {})
    assert recorder.ended == [(1, True, False), (2, False, True), (3, True, False)]
    assert loaded(store) == 3
    if world.is_main:
        assert "[Errno 13] Permission denied" in recorder.messages[0]
        assert recorder.messages[0].endswith("; training goes on, and the next save tries again")
    world.leave()


def test_a_lost_permission_is_reported_and_the_next_save_tries_again(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are not accessible to other users
        if os.geteuid() == 0:
            os.chown(name, NOBODY, -1)
        must_succeed(denied, 2, Path(name), logs=tmp_path / "logs")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("mounting a disk needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_disk_that_is_really_full(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(small_disk / "store", World.single())
    with Saver(store) as saver:
        saver.save(1, state(1), {})
        saver.wait()
        (small_disk / "other").write_bytes(bytes(700_000))
        saver.save(2, state(2), {})
        saver.save(3, state(3), {})
        saver.wait()
        assert sorted(os.listdir(small_disk / "store")) == ["step_00000001"]
        (small_disk / "other").unlink()
        saver.finish(4, state(4), {})
    assert [record.getMessage().partition("; ")[0].rpartition(": ")[2] for record in caplog.records] == [
        "[Errno 28] No space left on device"
    ] * 2
    assert loaded(store) == 4


def test_a_message_of_somebody_else_ends_the_run_and_is_no_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks no longer agree on what comes next, so nothing is tried again."""

    def read_it(store: Store, snapshot: object) -> None:
        raise Tampered(1)

    monkeypatch.setattr(Store, "write", read_it)
    saver = Saver(Store(tmp_path, World.single()))
    saver.save(1, {"part": Part({"w": torch.zeros(3)})}, {})
    with pytest.raises(Tampered, match="a message of rank 1 was changed on its way"):
        saver.wait()
