"""`samestep config RECIPE [--preset NAME] [--config FILE] [key=value ...]`: every field with type, default and meaning.

With a preset, a file or settings the value that a run would have is shown in place of the default."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from rich.console import Console

Row = tuple[str, ...]
Part = tuple[str, Row, list[Row]]  # title, head and rows of a table
_HEAD = ("Field", "Type", "Default", "Meaning")


def run(args: Sequence[str]) -> int:
    """Print the settings of the recipe."""
    from samestep.cli.args import COMMON_ALIASES, RecipeArgs

    recipe_args = RecipeArgs.parse(args, "config")
    recipe = recipe_args.recipe()
    given = recipe_args.merged(recipe) if recipe_args.options or recipe_args.settings else None
    show(recipe_args.name, recipe.config, recipe.presets, {**COMMON_ALIASES, **recipe.aliases}, given)
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
        ("Presets (--preset NAME)", ("Preset", "Sets"), _preset_rows(cls, presets)),
        ("Other names (--NAME)", ("Name", "Stands for"), _alias_rows(aliases)),
    ]
    parts = [part for part in parts if part[2]]
    if console is None and not is_terminal(sys.stdout):
        print_text("\n\n".join(_plain(*part) for part in parts))
    else:
        _draw(parts, console)


def _field_parts(recipe_name: str, cls: type, presets: Presets, given: Mapping[str, Any] | None) -> list[Part]:
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
    return [(_title(recipe_name, path), head, rows) for path, rows in sections.items()]


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


def _plain(title: str, head: Row, rows: list[Row]) -> str:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [head, *rows])
    return "\n".join([title, *lines])


def _draw(parts: Iterable[Part], console: "Console | None") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from samestep.core.console import PlainConsole

    console = console or PlainConsole()
    for title, head, rows in parts:
        console.print(Text(title, style="bold"))
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for at, name in enumerate(head):
            narrow = console.width // 6 if at in (1, 2) else None
            table.add_column(name, no_wrap=at == 0, overflow="fold", max_width=narrow, style="bold" if at == 0 else "")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))  # as Text, so that brackets are not read as markup
        console.print(table)
