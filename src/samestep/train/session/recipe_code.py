"""The source files of a recipe and their hashes, so that a resume can report what has changed in them.

Of a shipped recipe these are all files of its folder; of a user's recipe its own file, and the modules that it has
imported out of its folder or package by the time the run is opened.
"""

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import samestep
from samestep.train.api.recipe_registry import RECIPES_PACKAGE, find_module

_INSTALLED = ("site-packages", "dist-packages")


def recipe_code(name: str) -> dict[str, str]:
    """The hash of every source file of the recipe called `name`, by file name relative to its folder."""
    module = find_module(name)
    own = getattr(module, "__file__", None)
    if own is None:  # a namespace package, which has no code of its own
        return {}
    folder = _folder(module, Path(os.path.abspath(own)))
    base = folder.parent if (folder / "__init__.py").exists() else folder
    files = sorted({Path(os.path.abspath(own)), *_files(module, folder)})
    return {str(file.relative_to(base)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def code_hash(code: Mapping[str, str]) -> str:
    """One hash of what `recipe_code` returns."""
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()


def _folder(module: ModuleType, file: Path) -> Path:
    """The folder of a shipped recipe, of the outermost package, or the folder of a single file."""
    if _is_shipped(module):
        return file.parent
    depth = module.__name__.count(".") + hasattr(module, "__path__")
    return file.parents[max(0, depth - 1)]


def _files(module: ModuleType, folder: Path) -> Iterator[Path]:
    if _is_shipped(module):
        yield from folder.rglob("*.py") if hasattr(module, "__path__") else ()
        return
    if folder.name in _INSTALLED:  # a single file among installed packages
        return
    runtime, start = os.path.dirname(os.path.abspath(samestep.__file__)), f"{folder}{os.sep}"
    for other in list(sys.modules.values()):
        file = getattr(other, "__file__", None)
        path = os.path.abspath(file) if isinstance(file, str) and file.endswith(".py") else ""
        if not path.startswith(start) or path.startswith(runtime + os.sep) or not os.path.isfile(path):
            continue  # some modules that torch makes name a file that does not exist
        if not _is_installed(Path(path), folder):
            yield Path(path)


def _is_installed(file: Path, folder: Path) -> bool:
    """Whether a file below the recipe's folder is installed there: by a library, Python, or a virtual environment."""
    between = file.relative_to(folder).parts[:-1]
    folders = [folder.joinpath(*between[: depth + 1]) for depth in range(len(between))]
    standard = Path(sysconfig.get_paths()["stdlib"])
    return any(part.name in _INSTALLED or part == standard or (part / "pyvenv.cfg").exists() for part in folders)


def _is_shipped(module: ModuleType) -> bool:
    return module.__name__.startswith(f"{RECIPES_PACKAGE}.")
