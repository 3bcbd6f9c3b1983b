"""A full disk, or full shared memory: which one it is, how much is left, and what to do, as parts of a sentence."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeGuard

from samestep.core.errors import NoSpace

SHARED_MEMORY = Path("/dev/shm")
"""Where processes share memory: the batches of data workers, and semaphores."""
_MORE_SHARED = "give it more space (docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm)"


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
    if place == SHARED_MEMORY:
        whole = found.f_blocks * found.f_frsize / 1000  # not what is free: workers that ended have given theirs back
        return f"shared memory, {place}, is full ({why}; it holds {whole:,.0f} kB)"
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
    other = _MORE_SHARED if is_shared_memory(error) else "choose a folder on another disk with out=..."
    return NoSpace(f"{described}; {how_to_free(error)}, or {other}")


def how_to_free(error: OSError) -> str:
    """What the user can do at once, on whichever disk it is."""
    if is_shared_memory(error):
        return "load data without processes (num_workers=0), or with fewer"
    return "free some space there"


def is_shared_memory(error: OSError) -> bool:
    """Whether it is not a disk that is full, but the memory that processes share."""
    return isinstance(error.filename, str) and Path(error.filename).parent == SHARED_MEMORY


def shared_memory_full() -> OSError:
    """The error of a process that could not get shared memory; libraries raise others, which name no file."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(SHARED_MEMORY / "batch"))
