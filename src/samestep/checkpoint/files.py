"""Files that are synced to the disk, and the sizes and checksums by which damage is found."""

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from samestep.core.safe_files import open_file


@dataclass(frozen=True)
class FileRecord:
    """The size and checksum of a file."""

    size: int
    sha256: str


def write_file(path: Path, data: bytes) -> FileRecord:
    """Write a file and sync it to the disk."""
    with open_file(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(len(data), hashlib.sha256(data).hexdigest())


def size_damage_of(path: Path, expected: FileRecord) -> str | None:
    """How a file's size differs from its record, or None."""
    try:
        size = path.stat().st_size
    except OSError as error:
        return _unreadable(path, error)
    return None if size == expected.size else f"{path.name} has {size} bytes instead of {expected.size}"


def damage_of(path: Path, expected: FileRecord) -> str | None:
    """How a file differs from its record, or None; every byte of it is read."""
    damage = size_damage_of(path, expected)
    if damage:
        return damage
    try:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return _unreadable(path, error)
    return None if found == expected.sha256 else f"{path.name} does not match its checksum"


def _unreadable(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path.name} is missing"
    return f"{path.name} cannot be read ({error.strerror})"


def remove_folder(path: Path) -> None:
    """Remove a folder and everything in it, if it exists."""
    try:
        shutil.rmtree(path)
    except (FileNotFoundError, NotADirectoryError):
        if path.exists():  # a file in it vanished while it was being removed, as happens on network disks
            shutil.rmtree(path)
