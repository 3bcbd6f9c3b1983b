"""Removing runs. A run stays while it is running, and while another run refers to it."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.json_files import read_json_if_readable
from samestep.core.rundir import RunDir

_REMOVING = ".removing-"
"""How a folder is named that is being removed: a killed removal leaves no half of a run."""


def referring(run: RunDir, others: Sequence[RunDir]) -> list[RunDir]:
    """The other runs whose settings, plan or frozen networks name something of this run."""
    home = run.path.resolve()
    return [
        other
        for other in others
        if other.path.resolve() != home
        and any(
            _is_inside(text, home, other)
            for path in (other.config, other.first_launch)
            for text in _texts(read_json_if_readable(path))
        )
    ]


def remove_run(run: RunDir, others: Sequence[RunDir]) -> None:
    """Remove a run; refuses one that is running, or that another one refers to."""
    if found := referring(run, others):
        names = ", ".join(other.path.name for other in found)
        raise UserError(f"{run.path} stays: {names} refers to it; remove that first, or copy what it needs")
    lock = run.lock()  # refuses a run that is running
    hidden = run.path.with_name(f"{_REMOVING}{run.path.name}")
    try:
        run.path.rename(hidden)
    finally:
        lock.release()
    shutil.rmtree(hidden)


def _texts(value: Any) -> Iterator[str]:
    """All texts in JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _is_inside(text: str, home: Path, other: RunDir) -> bool:
    """Whether a text is the path of a run, or of something in it, or its name, such as `RUN:LEARNER`."""
    if not text or "\n" in text or len(text) > 4096:
        return False
    for part in {text, text.rpartition(":")[0] or text, text.partition("@")[0]}:
        path = Path(part)
        candidates = [path] if path.is_absolute() else [path, other.path.parent / path]
        for candidate in candidates:
            try:
                if candidate.resolve().is_relative_to(home):
                    return True
            except (OSError, ValueError, RuntimeError):  # no path
                continue
    return False
