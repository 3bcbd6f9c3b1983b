"""A full disk, or full shared memory: which one it is, how much is left, and what to do, as parts of a sentence."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeGuard

from samestep.core.errors import NoSpace

_SHARED_MEMORY = Path("/dev/shm")
"""Where processes share memory: the batches of data workers, and semaphores."""


def is_disk_full(error: BaseException | None) -> TypeGuard[OSError]:
    """Whether `error` means that a disk has no space left, or that the user's share of it is used up."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def describe_full_disk(error: OSError, folder: Path) -> str:
    """Which disk is full: that of the file which could not be written, or of `folder` where the error names none."""
    place = Path(error.filename).parent if isinstance(error.filename, str) else folder
    why = os.strerror(error.errno or errno.ENOSPC)
    try:
        found = os.statvfs(existing_folder(place))
    except OSError:
        return f"the disk of {place} is full ({why})"
    if error.errno == errno.EDQUOT:
        return f"your quota on the disk of {place} is used up ({why})"
    if found.f_files and not found.f_favail:
        return f"the disk of {place} is full ({why}: it can hold no more files, whatever their size)"
    return f"the disk of {place} is full ({why}, {found.f_bavail * found.f_frsize / 1000:,.0f} kB are free)"


def existing_folder(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    path = path.absolute()
    return next((folder for folder in (path, *path.parents) if folder.is_dir()), Path("/"))


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Name `path` in an error that names no file: Python names it where a file is opened, not where it is written."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def refusing_full_disk(folder: Path) -> Iterator[None]:
    """What is done before training: a full disk is something that the user can change."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise no_space(error, folder) from None


def no_space(error: OSError, folder: Path) -> NoSpace:
    """The refusal to begin on a full disk."""
    described = describe_full_disk(error, folder)
    return NoSpace(f"{described}; free some space there, or choose a folder on another disk with out=...")


def shared_memory_full() -> NoSpace:
    """The refusal to go on where processes can share no more memory; libraries raise errors that name no place."""
    try:
        found = os.statvfs(_SHARED_MEMORY)
        size = f"; it holds {found.f_blocks * found.f_frsize / 1000:,.0f} kB"
    except OSError:
        size = ""
    return NoSpace(
        f"shared memory, {_SHARED_MEMORY}, is full ({os.strerror(errno.ENOSPC)}{size}), through which data workers "
        "pass their batches; use fewer workers, or none (num_workers=0), or give it more space "
        "(docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm)"
    )
