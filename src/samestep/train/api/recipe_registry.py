"""Finding a recipe: by its folder in `samestep.recipes`, by import path, or by file."""

import hashlib
import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from samestep.core.arguments import described
from samestep.core.errors import UserError
from samestep.core.near_names import did_you_mean
from samestep.train.api.recipe import Recipe

RECIPES_PACKAGE = "samestep.recipes"


def known_recipes() -> list[str]:
    """The recipes that ship with the package."""
    return sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(RECIPES_PACKAGE).__path__))


def find_recipe(name: str) -> Recipe:
    """The recipe called `name`, or at import path `name` (`my_package.my_recipe`), or in the file `name` (`x.py`)."""
    module = find_module(name)
    recipe = getattr(module, "recipe", None)
    if not isinstance(recipe, Recipe):
        raise UserError(_no_recipe(name, module, recipe))
    return recipe


def _no_recipe(name: str, module: ModuleType, recipe: object) -> str:
    place = f"the {'file' if name.endswith('.py') else 'module'} {name}"
    others = [own for own, value in vars(module).items() if isinstance(value, Recipe)]
    if len(others) > 1:
        return f"{place} has several recipes ({', '.join(others)}); call the one to train `recipe`, or give each a file"
    if others:
        return f"{place} calls its recipe {others[0]!r}; call it `recipe`"
    if recipe is not None and not isinstance(recipe, ModuleType):
        return f"`recipe` in {place} must be a Recipe(...), but is {described(recipe)}"
    return f"{place} has no `recipe = Recipe(...)`; add one to make it a recipe"


def recipe_path(name: str) -> str:
    """A recipe's name for the record of a run: a file by its absolute path, so that a resume from another folder finds
    that file and no other of the same name."""
    return str(Path(name).absolute()) if name.endswith(".py") else name


def find_module(name: str) -> ModuleType:
    """The module of the recipe called `name`."""
    if name.endswith(".py"):
        return _load_file(Path(name))
    if name in known_recipes():
        return importlib.import_module(f"{RECIPES_PACKAGE}.{name}")
    folder = Path.cwd().resolve()
    if any(origin.is_relative_to(folder) for origin in recipe_origins(name)):
        _make_importable(folder)  # only then: any module of a shipped recipe could be replaced by a file in this folder
    if not _exists(name):
        raise UserError(_unknown(name))
    with _explaining_import(name):
        return importlib.import_module(name)


def recipe_origins(name: str) -> list[Path]:
    """Where the code of a recipe is that does not ship: its file, or where its outermost package is found, looking in
    the working directory first. Nothing of it is run. Empty where there is none."""
    if name.endswith(".py"):
        return [Path(name).resolve()] if Path(name).is_file() else []
    spec = _outermost_spec(name)
    if spec is None:
        return []
    if spec.has_location and spec.origin:
        return [Path(spec.origin).resolve()]
    return [Path(folder).resolve() for folder in spec.submodule_search_locations or ()]


def _outermost_spec(name: str) -> ModuleSpec | None:
    """That of the outermost package: to look for a package inside of it would import it."""
    before, first = list(sys.path), name.partition(".")[0]
    try:
        sys.path.insert(0, str(Path.cwd()))
        return importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return None
    finally:
        sys.path[:] = before


def _load_file(path: Path) -> ModuleType:
    """The module in a file, under a name that no other file has; modules beside it can be imported by their names."""
    if not path.is_file():
        raise UserError(f"the recipe file {path.absolute()} does not exist")
    path = path.resolve()  # not what lies beside a link to it
    name = file_module(path)
    if name in sys.modules:
        return sys.modules[name]
    _make_importable(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _explaining_import(str(path)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _explaining_import(name: str) -> Iterator[None]:
    """Turns what is not Python, and a module that is not there, into a sentence with the line."""
    try:
        yield
    except SyntaxError as error:
        raise UserError(f"{error.filename}, line {error.lineno}, is no Python: {error.msg}") from error
    except ModuleNotFoundError as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = next((frame for frame in reversed(frames) if not frame.filename.startswith("<")), None)
        where = f"{own.filename}, line {own.lineno}, imports it" if own else "it is imported"
        raise UserError(f"the recipe {name} needs the module {error.name!r}, which is not there ({where})") from error


def file_module(path: Path) -> str:
    """The module name of a recipe file."""
    return f"{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _exists(target: str) -> bool:
    try:
        is_name = all(part.isidentifier() for part in target.split("."))
        return is_name and importlib.util.find_spec(target) is not None
    except (ImportError, ValueError):
        return False


def _unknown(name: str) -> str:
    known = known_recipes()
    hint = did_you_mean(name, known)
    return f"there is no recipe {name!r}{hint}; known are {', '.join(known)}, or give the import path of your own"
