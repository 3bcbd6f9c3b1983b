"""Which recipes may run only because a run, a checkpoint or an exported model names them.

A recipe is code, and whoever made a folder chose the recipe that it names. So such a recipe runs without asking only if

- it ships with samestep, or
- this user has started or submitted a run of it before, and it is not in the folder that names it.

All others have to be named by the user (--recipe). The same holds for a function that a setting names (see
`named_code.py`); who has started it has not started other functions of its module. What was started is remembered
outside of all runs, so that no folder can claim it: an empty file for each recipe or function in
~/.config/samestep/trusted-recipes, named by a hash of where its code is. To forget one, remove its file, or all of
them. If that folder cannot be written, nothing is remembered.
"""

import hashlib
import os
import shlex
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.paths import settings_folder
from samestep.train.api.recipe_registry import known_recipes, recipe_origins


def remember_recipe(name: str, function: str = "") -> None:
    """Remember that this user has started or submitted a run of the recipe, or with a function of the module `name`.
    Several processes may do so at once."""
    folder, origins = _folder(), recipe_origins(name)
    if name in known_recipes() or folder is None or not origins:
        return
    with suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(folder / _key(name, origins, function), os.O_CREAT | os.O_WRONLY, 0o600))


def require_trusted(name: Any, folder: Path) -> None:
    """Refuse to run the recipe that `folder` (or a file) names, unless it ships or this user has started it before."""
    if not isinstance(name, str):
        raise UserError(f"{folder} names no recipe; say which one with --recipe (in Python: recipe=...)")
    origins = [] if name in known_recipes() else recipe_origins(name)
    if not origins:  # it ships, or nothing is found that could run
        return
    if not _is_trusted(name, origins, folder):
        shown = shlex.quote(name) if name.isprintable() else "RECIPE"
        raise UserError(
            f"{folder} was made by the recipe {name!r}, which does not ship with samestep; if you trust it, give "
            f"--recipe {shown} (in Python: recipe=...)"
        )


def is_trusted_function(module: str, function: str, folder: Path) -> bool:
    """Whether a function that `folder` names may run: this user has started it before, and it is not in there."""
    origins = recipe_origins(module)
    return bool(origins) and _is_trusted(module, origins, folder, function)


def _is_trusted(name: str, origins: list[Path], folder: Path, function: str = "") -> bool:
    is_inside = any(origin.is_relative_to(folder.resolve()) for origin in origins)
    is_protected = all(_is_protected(origin) for origin in origins)
    return not is_inside and is_protected and _is_remembered(name, origins, function)


def _folder() -> Path | None:
    """Where started recipes are remembered; None where the user has no home."""
    folder = settings_folder(os.environ)
    return folder / "trusted-recipes" if folder else None


def _key(name: str, origins: list[Path], function: str) -> str:
    """An import path is part of it, since another module of the same package is another recipe."""
    module = "" if name.endswith(".py") else name
    parts = [module, *map(str, origins), *([f":{function}"] if function else [])]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _is_remembered(name: str, origins: list[Path], function: str) -> bool:
    """Whether this user, and nobody else, has put the recipe into the folder."""
    folder = _folder()
    if folder is None:
        return False
    try:
        files = [os.lstat(folder), os.lstat(folder / _key(name, origins, function))]
    except OSError:
        return False
    return all(file.st_uid == os.getuid() and not file.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for file in files)


def _is_protected(origin: Path) -> bool:
    """Whether only this user, root and the file's group can have changed the code."""
    try:
        found = os.stat(origin)
    except OSError:
        return False
    return found.st_uid in (os.getuid(), 0) and not found.st_mode & stat.S_IWOTH
