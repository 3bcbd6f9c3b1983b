"""`samestep recipes`: the recipes that ship, with one line each, read from their source: none is imported."""

import ast
from collections.abc import Sequence
from pathlib import Path

from samestep.cli.help import asks_for_help
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.output import print_text

HELP = """samestep recipes

The recipes that ship with samestep, with what each trains. `samestep train RECIPE` takes one of these names, the
import path of your own recipe (my_package.my_recipe), or its file (my_recipe.py)."""
_FOLDER = Path(__file__).parents[1] / "recipes"


def run(args: Sequence[str]) -> int:
    """List them."""
    if asks_for_help(args):
        print_text(HELP)
        return EXIT_DONE
    if args:
        raise UserError(f"samestep recipes takes nothing, not {args[0]!r}; samestep config RECIPE describes one recipe")
    for name, meaning in recipe_lines().items():
        print_text(f"{name:10} {meaning}")
    print_text("\nsamestep train RECIPE trains one, samestep config RECIPE prints its settings and presets")
    return EXIT_DONE


def recipe_lines() -> dict[str, str]:
    """What each recipe trains: the first line of its text, up to the command."""
    files = sorted(_FOLDER.glob("*/__init__.py"))
    texts = {file.parent.name: ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "" for file in files}
    return {name: text.split("\n", 1)[0].partition(": `")[0].rstrip(".") for name, text in texts.items()}
