"""An artifact that appears complete or not at all: a file, or a folder of files."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from samestep.core.errors import UserError
from samestep.core.json_files import replace_folder, sync_folder
from samestep.core.rundir import DONE
from samestep.core.safe_files import temporary_folder


def check_name(name: str) -> None:
    """Refuse a name that is no path inside the folder of a stage's artifacts, or is the runtime's own."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or any(part.startswith(".") for part in path.parts):
        raise UserError(f"{name!r} cannot be the name of an artifact; use a name such as vocab.json")
    if name == DONE:
        raise UserError(f"an artifact cannot be called {DONE}, which marks a stage that is done; use another name")


@contextmanager
def atomic_artifact(path: Path, is_main: bool) -> Iterator[Path]:
    """A path to write a file or a folder to, that becomes `path` at the end; what other ranks than rank 0 write is
    thrown away."""
    if not is_main:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / path.name
        return
    with temporary_folder(path) as folder:
        temporary = folder / path.name
        yield temporary
        if not temporary.exists():
            raise UserError(f"nothing was written for the artifact {path.name}; write to the path that you are given")
        _sync(temporary)
        if temporary.is_dir():
            replace_folder(temporary, path)
        else:
            os.replace(temporary, path)
            sync_folder(path.parent)


def _sync(path: Path) -> None:
    for each in [path, *path.rglob("*")] if path.is_dir() else [path]:
        sync_folder(each)  # a file can be synced by a handle that only reads, too
