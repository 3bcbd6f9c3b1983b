"""The folder moves behind a store: a checkpoint gets its name, loses it, or comes back. Rank 0 alone makes them.

Every hidden name says what a kill left behind: `.staging_` a save that was not finished, `.replaced_` the older of two
of the same step, `.doomed_` one that was being removed.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from samestep.checkpoint.files import remove_folder
from samestep.core.records import sync_folder

STAGING, REPLACED, DOOMED = ".staging_", ".replaced_", ".doomed_"


def make_anew(folder: Path) -> None:
    """An empty folder, whatever was there."""
    remove_folder(folder)
    folder.mkdir(parents=True)


def replaced(final: Path) -> Path:
    """Where the older of two checkpoints of the same name waits."""
    return final.with_name(f"{REPLACED}{final.name}")


def put_in_place(staging: Path, final: Path, on_replaced: Callable[[], None]) -> None:
    """Give a written checkpoint its name. An older one of that name counts until then, and is found where it waits."""
    aside = replaced(final)
    if final.exists():
        remove_folder(aside)
        os.rename(final, aside)
        on_replaced()
    os.rename(staging, final)
    sync_folder(final.parent)


def remove_checkpoints(paths: Iterable[Path]) -> None:
    """Remove checkpoints: all hidden first, so that a kill in between leaves none that is half there."""
    hidden = []
    for path in paths:
        hidden.append(path.with_name(f"{DOOMED}{path.name}"))
        remove_folder(hidden[-1])
        os.rename(path, hidden[-1])
        sync_folder(path.parent)
    for path in hidden:
        remove_folder(path)


def tidy(folder: Path) -> None:
    """Remove what killed saves left in a folder, and bring back what one had put aside."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.startswith((STAGING, DOOMED)):
            remove_folder(path)
        elif path.name.startswith(REPLACED):
            final = folder / path.name.removeprefix(REPLACED)
            if final.exists():
                remove_folder(path)
            else:  # killed between putting the old one aside and naming the new one
                os.rename(path, final)
                sync_folder(folder)
