"""How everything of ours is opened for writing, and where it is written until it is complete.

A stranger who may write into the same folder can put a symbolic link where a file of ours will be, and so have another
file overwritten. So no link is ever followed to write, and temporary files and folders are new and have names that
nobody can guess.
"""

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from samestep.core.errors import UserError

_PRIVATE = 0o600
_NAME_LENGTH = 100  # characters of a file's name that the name of its temporary file keeps
_TEMPORARY = re.compile(r"\.(?P<name>.*)\.[0-9a-f]{16}\.tmp", re.DOTALL)


def open_file(path: Path, mode: str, *, encoding: str | None = None) -> IO[Any]:
    """Open a file to write to it, in any mode of `open`. What is there and is not a file is refused."""
    return open(path, mode, encoding=encoding, opener=_open_without_link)


def _open_without_link(path: str, flags: int) -> int:
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)  # a pipe without a reader would block
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refused(path, "a symbolic link") from None
        if error.errno == errno.ENXIO:
            raise _refused(path, "a pipe or a socket") from None
        if error.errno == errno.EISDIR:
            raise _refused(path, "a folder") from None
        raise
    kind = os.fstat(handle).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISCHR(kind)):  # /dev/null is a device
        os.close(handle)
        raise _refused(path, "a pipe or a socket")
    return handle


def _refused(path: str, what: str) -> UserError:
    return UserError(f"{path} is {what}, where a file is to be written; find out who made it, and remove it")


def open_new(path: Path, *, private: bool = False) -> BinaryIO:
    """Open a file that must not exist yet; with `private`, others can never read it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return cast(BinaryIO, os.fdopen(os.open(path, flags, _PRIVATE if private else 0o666), "wb"))


def write_text(path: Path, text: str) -> None:
    """Write a text file, in place of what it held."""
    with open_file(path, "w", encoding="utf-8") as file:
        file.write(text)


def temporary_name(path: Path) -> Path:
    """A name beside `path` for what becomes `path` when it is complete; nobody can guess it."""
    return path.with_name(f".{path.name[:_NAME_LENGTH]}.{secrets.token_hex(8)}.tmp")


@contextmanager
def temporary_folder(path: Path, *, private: bool = True) -> Iterator[Path]:
    """A folder beside `path`, which nobody else can look into if it is private; removed at the end, and so is what a
    kill left of one.

    For what libraries write by name, to be moved to `path` when it is complete; or to become `path` itself, with the
    usual permissions then (`private=False`). `path` must have one writer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, path.name)
    folder = temporary_name(path)
    folder.mkdir(mode=0o700 if private else 0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_private_folder(folder: Path) -> None:
    """Make a folder that nobody else can look into; one that is there already becomes so."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchmod(handle, 0o700)
    finally:
        os.close(handle)


def others_may_write(folder: Path) -> str:
    """How others could put something into a folder, such as "belongs to another user"; empty if only this user and root
    can."""
    trusted = (os.geteuid(), 0)
    if os.lstat(folder).st_uid not in trusted or os.stat(folder).st_uid not in trusted:
        return "belongs to another user"
    if os.stat(folder).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users can write to"
    if any(_may_be_replaced(above.stat().st_mode) for above in folder.resolve().parents):
        return "other users can replace"
    return ""


def _may_be_replaced(mode_above: int) -> bool:
    return bool(mode_above & stat.S_IWOTH and not mode_above & stat.S_ISVTX)


def is_temporary(path: Path) -> bool:
    """Whether this is the name of a temporary file or folder, which a kill may have left."""
    return _TEMPORARY.fullmatch(path.name) is not None


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove temporary files and folders that a kill left: those of one file, or all. Nobody else may be writing."""
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        found = _TEMPORARY.fullmatch(path.name)
        if found is None or (name is not None and found["name"] != name[:_NAME_LENGTH]):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):  # it is not in the way
                path.unlink(missing_ok=True)
