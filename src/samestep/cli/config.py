"""`samestep config RECIPE [--preset NAME] [--config FILE] [key=value ...]`: every field with type, default and meaning.

With a preset, a file or settings the value that a run would have is shown in place of the default."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from samestep.cli.help import asks_for_help
from samestep.core.config import (
    MISSING,
    Alias,
    Aliases,
    Presets,
    build,
    fields_of,
    flatten,
    group_options,
    listed,
    merge,
    plain,
)
from samestep.core.errors import EXIT_DONE
from samestep.core.output import is_terminal, print_text
from samestep.core.pages.tables import Column, Table

if TYPE_CHECKING:
    from rich.console import Console

Row = tuple[str, ...]
HELP = """samestep config RECIPE [--preset NAME] [--config FILE] [key=value | --key value ...]

Prints every setting of a recipe with type, default and meaning, its presets, and other names of its settings; with a
preset, a file or settings: the value that a run would have."""
_HEAD = ("Field", "Type", "Default", "Meaning")


def run(args: Sequence[str]) -> int:
    """Print the settings of the recipe."""
    if not args or asks_for_help(args):
        print_text(HELP)
        return EXIT_DONE
    from samestep.cli.args import RecipeArgs

    recipe_args = RecipeArgs.parse(args, "config")
    recipe = recipe_args.recipe()
    given = recipe_args.merged(recipe) if recipe_args.options or recipe_args.settings else None
    show(recipe_args.name, recipe.config, recipe.presets, recipe.all_aliases, given)
    return EXIT_DONE


def show(
    recipe_name: str,
    cls: type,
    presets: Presets | None = None,
    aliases: Aliases | None = None,
    given: Mapping[str, Any] | None = None,
    console: "Console | None" = None,
) -> None:
    """Print the config of a recipe: a table on a terminal, one line per field elsewhere, so that `grep` finds it.

    `given` are settings from a file and the command line, merged with the default ones: they are shown in their place.
    """
    presets, aliases = presets or {}, aliases or {}
    parts = [
        *_field_parts(recipe_name, cls, presets, given),
        _table("Presets (--preset NAME)", ("Preset", "Sets"), _preset_rows(cls, presets)),
        _table("Other names (--NAME)", ("Name", "Stands for"), _alias_rows(aliases)),
    ]
    parts = [part for part in parts if part.rows]
    if console is None and not is_terminal(sys.stdout):
        print_text("\n\n".join(part.text() for part in parts))
    else:
        _draw(parts, console)


def _field_parts(recipe_name: str, cls: type, presets: Presets, given: Mapping[str, Any] | None) -> list[Table]:
    """A part for each section. Defaults are the values without any args: base group and default preset are included."""
    data = merge(cls, presets, {}, None, None, ()) if given is None else given
    effective = dict(flatten(cls, data))
    if given is not None and not any(doc.default is MISSING and doc.path not in effective for doc in fields_of(cls)):
        build(cls, data)  # refuses what `train` would refuse
    head = _HEAD if given is None else (*_HEAD[:2], "Value", _HEAD[3])
    sections: dict[str, list[Row]] = {"": []}
    for doc in fields_of(cls):
        default = _text(effective.get(doc.path, doc.default))
        sections.setdefault(doc.path.rpartition(".")[0], []).append((doc.path, doc.type, default, doc.doc))
    return [_table(_title(recipe_name, path), head, rows) for path, rows in sections.items()]


def _title(recipe_name: str, path: str) -> str:
    if not path:
        return f"Fields of {recipe_name}"
    options = group_options(path)
    return f"Section {path}" + (f" (set as a whole: {path}={listed(options, 'or')})" if options else "")


def _preset_rows(cls: type, presets: Presets) -> list[Row]:
    return [(name, _settings(cls, presets[name]) or "nothing: the defaults") for name in presets]


def _settings(cls: type, data: Mapping[str, Any]) -> str:
    return " ".join(f"{path}={_text(value)}" for path, value in flatten(cls, data) if value != {})


def _alias_rows(aliases: Aliases) -> list[Row]:
    rows: list[Row] = []
    for name, alias in aliases.items():
        alias = Alias(alias) if isinstance(alias, str) else alias
        values = ", ".join(f"{key}: {_text(value)}" for key, value in (alias.values or {}).items())
        rows.append((f"--{name}", f"{alias.path} ({values})" if values else alias.path))
    return rows


def _text(value: Any) -> str:
    """A value as it is written on the command line."""
    if value is MISSING:
        return "(required)"
    return value if isinstance(value, str) and value else json.dumps(plain(value), ensure_ascii=False)


def _table(title: str, head: Row, rows: list[Row]) -> Table:
    return Table([Column(name) for name in head], rows, title)


def _draw(parts: Iterable[Table], console: "Console | None") -> None:
    from rich.text import Text

    from samestep.core.console import PlainConsole

    console = console or PlainConsole()
    for part in parts:
        console.print(Text(part.title, style="bold"))
        narrow, (first, *others) = console.width // 6, part.all_columns
        columns = [replace(each, wraps=True, width=narrow if at < 2 else None) for at, each in enumerate(others)]
        console.print(Table([replace(first, style="bold"), *columns], part.rows).drawn())
