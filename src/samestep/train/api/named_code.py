"""Settings that name a function of the user's: `reward=my_module:reward`, or `reward=my_rewards.py:reward`.

A recipe lists them (`Recipe.code_settings`). What such a setting names is run, so it is taken only from the command
line and from the recipe, which is code itself. A config file that names code is refused; so is a run that is resumed,
unless the setting is given again, or this user has started a run with that function before. The code's files belong to
those of the recipe: a resumed run says which of them have changed, and no stage is taken over from other code.
"""

import inspect
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from samestep.core.config.no_effect import Given
from samestep.core.errors import UserError
from samestep.train.api.recipe import Recipe
from samestep.train.api.recipe_registry import find_module, recipe_path
from samestep.train.api.trusted_recipes import is_trusted_function


def find_function(setting: str, text: str) -> Callable[..., Any]:
    """The function that `module:function` or `file.py:function` names. Imports the module."""
    module_name, _, name = text.rpartition(":")
    if not module_name or not name.isidentifier():
        raise UserError(f"Write {setting}=module:function or {setting}=file.py:function, not {text!r}.")
    what = f"the module {module_name!r} of {setting}={text}"
    try:
        module = find_module(module_name)
    except UserError as error:
        raise UserError(f"Correct {what}, or run where it can be imported: {error}.") from error
    except Exception as error:
        raise UserError(f"Correct {what}: importing it raised {raised(error)}.") from error
    function = getattr(module, name, None)
    if not inspect.isroutine(function):
        own = sorted(key for key, value in vars(module).items() if inspect.isfunction(value) and key[0] != "_")
        raise UserError(f"{module_name} has no function {name!r} for {setting}; it has: {', '.join(own) or 'none'}.")
    return function


def raised(error: Exception) -> str:
    """An error of the user's code and where it happened, for a sentence."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    message = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")
    return f"{message} ({frames[-1].filename}, line {frames[-1].lineno})"


def named_functions(recipe: Recipe, config: Any) -> list[tuple[str, str, str]]:
    """The settings that name functions, each with the module or file and the function."""
    found = [(setting, *text.rpartition(":")) for setting, text in _named(recipe, config)]
    return [(setting, module, function) for setting, module, _, function in found]


def with_whole_paths(recipe: Recipe, config: Any) -> Any:
    """The configuration with absolute paths of files that settings name functions of: a resume from another folder must
    find the same."""
    for setting, text in _named(recipe, config):
        config = replace(config, **{setting: _whole(text)})
    return config


def refuse_code_of_file(recipe: Recipe, config: Any, given: Given, typed: Collection[str]) -> None:
    """Refuse code that neither the command line nor the recipe names."""
    for setting, text in _named(recipe, config):
        if setting not in typed and text not in _of_recipe(recipe, setting):
            place = given.get(setting) or "in a config file"
            raise UserError(
                f"Give {setting}={text} on the command line: it names code, and {place} only settings are read."
            )


def require_trusted_code(recipe: Recipe, config: Any, typed: Collection[str], folder: Path) -> None:
    """Refuse to run code only because the run in `folder` names it, unless this user has started it before."""
    for setting, module, function in named_functions(recipe, config):
        text = f"{module}:{function}"
        if setting in typed or text in _of_recipe(recipe, setting):
            continue
        if not is_trusted_function(module, function, folder):
            raise UserError(
                f"{folder} was trained with {setting}={text}, which is code that does not ship with samestep; if you "
                f"trust it, give {setting}={text} again."
            )


def require_own_code(recipe: Recipe, config: Any, started_with: Any, folder: Path) -> None:
    """Of a rank that has its settings from rank 0: refuse code that its own command line does not name."""
    own = {_whole(part) for word in _words(started_with) for part in (word, word.partition("=")[2]) if ":" in part}
    typed = [setting for setting, text in _named(recipe, config) if text in own]
    require_trusted_code(recipe, config, typed, folder)


def _named(recipe: Recipe, config: Any) -> Iterator[tuple[str, str]]:
    for setting in recipe.code_settings:
        text = getattr(config, setting)
        if isinstance(text, str) and ":" in text:
            yield setting, text


def _of_recipe(recipe: Recipe, setting: str) -> list[Any]:
    """What the recipe itself names: its default, and in its presets."""
    return [preset[setting] for preset in recipe.presets.values() if setting in preset] + [
        getattr(recipe.config, setting, None)
    ]


def _whole(text: str) -> str:
    module, _, name = text.rpartition(":")
    return f"{recipe_path(module)}:{name}"


def _words(given: Any) -> Sequence[str]:
    """All texts in lists and mappings of settings that were typed."""
    if isinstance(given, str):
        return [given]
    parts = given.values() if isinstance(given, dict) else given if isinstance(given, list | tuple) else ()
    return [word for part in parts for word in _words(part)]
