"""Finding a recipe: by its folder in `samestep.recipes`, or by import path, the working directory being importable."""

import difflib
import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

from samestep.core.errors import UserError
from samestep.train.recipe import Recipe

HOME = "samestep.recipes"


def known_recipes() -> list[str]:
    """The recipes that ship with the package."""
    return sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(HOME).__path__))


def find_recipe(name: str) -> Recipe:
    """The recipe called `name`, or at import path `name` (`my_package.my_recipe`), or in the file `name` (`x.py`)."""
    module = find_module(name)
    recipe = getattr(module, "recipe", None)
    if not isinstance(recipe, Recipe):
        raise UserError(f"the module {module.__name__} has no `recipe = Recipe(...)`; add one to make it a recipe")
    return recipe


def find_module(name: str) -> ModuleType:
    """The module of the recipe called `name`."""
    if name.endswith(".py"):
        return find_module(_module_of(Path(name)))
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    target = f"{HOME}.{name}" if name in known_recipes() else name
    if not _exists(target):
        raise UserError(_unknown(name))
    return importlib.import_module(target)


def _exists(target: str) -> bool:
    try:
        return importlib.util.find_spec(target) is not None
    except (ImportError, ValueError):
        return False


def _module_of(path: Path) -> str:
    if not path.exists():
        raise UserError(f"the recipe file {path} does not exist")
    folder = str(path.parent.absolute())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return path.stem


def _unknown(name: str) -> str:
    known = known_recipes()
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"there is no recipe {name!r}{hint}; known are {', '.join(known)}, or give the import path of your own"
