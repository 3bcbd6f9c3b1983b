"""What the scripts of a project call (see new.py): a recipe with the settings that lie beside the script."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from samestep.cli.main import main
from samestep.core.config import split_options
from samestep.core.errors import UserError
from samestep.core.output import print_text
from samestep.world.rank_discovery import discover

CONFIG_FILE = ("config", "config-path", "config-name")


def train_with(recipe: str, settings: Path, *, note: str = "", args: Sequence[str] | None = None) -> int:
    """`samestep train RECIPE --config settings`, with what was typed after the script's name; returns the exit code.

    A config file that was typed takes the place of `settings`. The note is the first line that the first process
    prints: how this project differs from the scripts that its users know.
    """
    typed = list(sys.argv[1:] if args is None else args)
    if note and _is_first_process():
        print_text(note)
    own = [] if _names_config(typed) else [f"--config={settings}"]
    return main(["train", recipe, *own, *typed])


def _is_first_process() -> bool:
    try:
        return discover(os.environ).rank == 0
    except UserError:  # `main` says what is wrong
        return True


def _names_config(args: Sequence[str]) -> bool:
    try:
        return bool(split_options(args, CONFIG_FILE)[0])
    except UserError:  # `main` says what is wrong
        return False
