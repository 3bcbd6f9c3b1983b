"""Every setting of every recipe, and of the options of its verbs, with values that make no sense for most of them.

A value is given on the command line and in a config file. Up to where training would begin, it must be refused with a
sentence, or be taken for what it says: a number within the bounds of its field, a choice among those that there are,
the text as it was written.
"""

import json
import math
import random
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from fuzz.trial import ACCEPTED, REFUSED, SILENT, TRACEBACK, Trial
from samestep.cli.args import RecipeArgs
from samestep.core.config import build
from samestep.core.config.bounds import bare, broken_bounds
from samestep.core.config.schema import FALSE_WORDS, NULL_WORDS, TRUE_WORDS, init_fields, members, section, types_of
from samestep.core.errors import UserError, path_error
from samestep.train.api.recipe import Verb
from samestep.train.api.recipe_registry import find_recipe, known_recipes

LONG = "n" * 300
TEXTS = ("nan", "inf", "-inf", "-1", "0", "1e400", "1" * 23, "", "abc", "[]", "{}", "null", "a[/b]", LONG, "true")
PATHS = ("a_file", "a_folder", "missing/path", "a_file/below")
DATA: tuple[Any, ...] = (math.nan, math.inf, -math.inf, -1, 0, 10**23, "", "abc", [], {}, None, True, [[[]]], {"a": 1})
HOSTILE = ("nul\0", "\ud800", "\udcff", "a\nb")
DEEP: Any = "x"
for _ in range(60):
    DEEP = [DEEP]


@dataclass(frozen=True)
class Field:
    """One setting of a recipe, or one option of a verb of it."""

    recipe: str
    cls: type
    """The config of the recipe, or the options of the verb."""
    path: str
    kind: Any

    @property
    def is_setting(self) -> bool:
        """Whether it is one of the recipe's settings."""
        return self.cls is find_recipe(self.recipe).config


def fields() -> list[Field]:
    """All of them."""
    found = []
    for name in known_recipes():
        recipe = find_recipe(name)
        verbs = [verb.options for verb in (recipe.sample, recipe.evaluate) if isinstance(verb, Verb)]
        for cls in (recipe.config, *verbs):
            found += [Field(name, cls, path, kind) for path, kind in _fields(cls)]
    return found


def _fields(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in init_fields(cls):
        kind, path = types_of(cls)[field.name], prefix + field.name
        yield path, kind
        inner = section(kind)
        if inner is not None:
            yield from _fields(inner, f"{path}.")


def _nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def _build(field: Field, value: Any, how: str, folder: Path) -> Any:
    """The config with this value in it, as far as it is made before training begins."""
    if not field.is_setting:
        return build(field.cls, _nested(field.path, value))
    recipe = find_recipe(field.recipe)
    args = [field.recipe, f"out={folder}"]
    if how == "command line":
        args.append(f"{field.path}={value}")
    else:
        file = folder / "config.json"
        file.write_text(json.dumps(_nested(field.path, value)))
        args += ["--config", str(file)]
    preset = "verify" if "verify" in recipe.presets and field.path != "preset" else None
    return RecipeArgs.parse(args, "train").config(recipe, preset)


def _taken(config: Any, path: str) -> Any:
    for part in path.split("."):
        config = getattr(config, part, None)
    return config


def is_sensible(kind: Any, given: Any, taken: Any) -> bool:
    """Whether a value of a field of this type may be what was made of what was given."""
    return any(_fits(bare(member), member, given, taken) for member in members(kind))


def _fits(kind: Any, full: Any, given: Any, taken: Any) -> bool:
    if kind in (Any, object):
        return True
    if taken is None:
        return kind is type(None) and (given is None or str(given).lower() in NULL_WORDS)
    if kind in (int, float):
        return type(taken) is kind and broken_bounds(taken, full) is None and _same_number(given, taken)
    if kind is bool:
        return type(taken) is bool and str(given).lower() in (TRUE_WORDS if taken else FALSE_WORDS)
    if kind in (str, Path):
        return isinstance(taken, kind) and "\0" not in str(taken) and _is_text(str(taken))
    if get_origin(kind) is Literal:
        return taken in get_args(kind)
    return isinstance(taken, list | tuple | dict) or section(kind) is not None


def _same_number(given: Any, taken: float) -> bool:
    try:
        return float(given) == float(taken)
    except (TypeError, ValueError):
        return False


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def trial(field: Field, value: Any, how: str, folder: Path) -> Trial:
    """One value for one setting."""
    group = f"settings, {how}" if field.is_setting else "options of verbs"
    label = f"{field.recipe} ({field.cls.__name__}) {how}: {field.path}={value!r}"[:300]
    try:
        config = _build(field, value, how, folder)
    except UserError as error:
        is_sentence = str(error).strip() and len(str(error).splitlines()) == 1
        return Trial(group, label, REFUSED if is_sentence else TRACEBACK, f"not one sentence: {error}")
    except Exception as error:
        if path_error(error):
            return Trial(group, label, REFUSED)
        return Trial(group, label, TRACEBACK, traceback.format_exc()[-2500:])
    taken = _taken(config, field.path)
    is_right = is_sensible(field.kind, value, taken)
    return Trial(group, label, ACCEPTED if is_right else SILENT, f"became {taken!r}"[:300])


def cases(folder: Path, rng: random.Random) -> list[tuple[Field, Any, str]]:
    """Every field with every value, in a random order."""
    (folder / "a_folder").mkdir(parents=True)
    (folder / "a_file").write_text("text\n")
    paths = [str(folder / path) for path in PATHS]
    found: list[tuple[Field, Any, str]] = []
    for field in fields():
        on_line: Sequence[Any] = (*TEXTS, *paths)
        in_file: Sequence[Any] = (*DATA, *HOSTILE, DEEP)
        found += [(field, value, "command line") for value in on_line]
        found += [(field, value, "config file") for value in in_file]
    rng.shuffle(found)
    return found


def trials(folder: Path, count: int | None, rng: random.Random) -> Iterator[Trial]:
    """So many of the cases, or all of them."""
    for field, value, how in cases(folder, rng)[:count]:
        yield trial(field, value, how, folder)
