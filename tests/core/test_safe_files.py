"""Nothing that a stranger puts into the folder makes us write into another file, or show what is private."""

import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from samestep.checkpoint.files import write_file
from samestep.checkpoint.safetensor_files import write_safetensors_file
from samestep.checkpoint.tensors import HashingFileSystem
from samestep.core.errors import UserError
from samestep.core.json_files import JsonLines, atomic_file, write_atomically, write_json
from samestep.core.logs import start_logging
from samestep.core.rundir import RunDir
from samestep.core.safe_files import open_file, open_new, remove_leftovers, temporary_folder, temporary_name, write_text
from samestep.data.prepared.writing import fresh_folder
from samestep.train.artifacts.files import atomic_artifact
from samestep.world.watchdog.stack_dump import StackDumpFile


def lock(path: Path) -> None:
    RunDir(path.parent).lock().release()


def log(path: Path) -> None:
    start_logging(path, show=None)
    logging.getLogger("samestep").error("text")
    start_logging(None, show=None)


def artifact(path: Path) -> None:
    with atomic_artifact(path, is_main=True) as target:
        target.write_text("text")


def stream(path: Path) -> None:
    with HashingFileSystem().create_stream(path, "wb") as file:
        file.write(b"text")


WRITERS: dict[str, Callable[[Path], object]] = {
    "lock": lock,
    "rank_0.log": log,
    "x.json": lambda path: write_json(path, {"a": 1}),
    "x.txt": lambda path: write_atomically(path, "text"),
    "out.jsonl": lambda path: write_text(path, "text"),
    "rows.jsonl": lambda path: JsonLines(path).append({"a": 1}),
    "kept.jsonl": lambda path: JsonLines(path).keep(lambda row: False),
    "stacks.txt": lambda path: StackDumpFile(path, alone=False).close(),
    "vocab.json": artifact,
    "__0_0.distcp": stream,
    "manifest.json": lambda path: write_file(path, b"text"),
    "a.safetensors": lambda path: write_safetensors_file(path, {"a": torch.ones(2)}),
}
"""Everything that writes files, by the name of one."""


@pytest.mark.parametrize("name", WRITERS)
def test_a_link_in_the_place_of_a_file_is_not_followed(name: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text('{"mine": 1}\n')
    folder = tmp_path / "run"
    folder.mkdir()
    path = folder / name
    for planted in (path, folder / f".{name}.tmp", folder / f".{name}.partial"):
        planted.symlink_to(victim)
    with suppress(UserError):  # the link is refused, or replaced by a file
        WRITERS[name](path)
    assert victim.read_text() == '{"mine": 1}\n'


def test_the_sentence_about_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match=f"{tmp_path}/lock is a symbolic link.*; find out who made it, and remove it"):
        RunDir(tmp_path).lock()
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("name", WRITERS)
def test_without_a_link_everything_is_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "kept.jsonl").write_text('{"a": 1}\n')
    WRITERS[name](tmp_path / name)
    assert (tmp_path / name).is_file()
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.timeout(900)
def test_a_pipe_without_a_reader_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(UserError, match="is a pipe or a socket"):
        open_file(tmp_path / "lock", "ab")
    with pytest.raises(UserError, match="is a pipe or a socket"):
        RunDir(tmp_path).lock()


def test_a_device_may_be_written_to() -> None:
    write_text(Path(os.devnull), "text")


def test_a_new_file_is_new(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")  # one that leads nowhere, too
    with pytest.raises(FileExistsError):
        open_new(tmp_path / "a")
    assert not (tmp_path / "b").exists()


def test_what_is_private_is_so_from_the_first_byte_and_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.touch(0o644)
    before = os.umask(0)
    try:
        with atomic_file(path, private=True) as file:
            assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_temporary_names_differ_and_what_is_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 60)
    assert len({temporary_name(path) for _ in range(100)}) == 100
    left, other = temporary_name(path), temporary_name(tmp_path / "b")
    left.touch()
    other.mkdir()
    (tmp_path / ".a.tmp").touch()  # not ours
    with temporary_folder(path) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert not left.exists() and other.exists()
    assert not folder.exists()
    remove_leftovers(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [".a.tmp"]


def test_a_link_among_what_is_left_takes_nothing_with_it(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "mine").touch()
    folder = tmp_path / "run"
    folder.mkdir()
    temporary_name(folder / "a").symlink_to(victim)
    remove_leftovers(folder)
    assert not any(folder.iterdir()) and (victim / "mine").exists()


def test_a_link_in_the_place_of_a_staging_folder_does_not_empty_another_folder(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis.txt").touch()
    (tmp_path / ".tokens.preparing").symlink_to(victim)
    with pytest.raises(UserError, match="symbolic link"), fresh_folder(tmp_path / "tokens", overwrite=False):
        pass
    assert (victim / "thesis.txt").exists()
