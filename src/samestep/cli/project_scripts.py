"""What the scripts of a project call (see new.py): a recipe with the settings that lie beside the script."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from samestep.cli.main import main
from samestep.cli.train import is_first_process
from samestep.core.config import split_options
from samestep.core.errors import EXIT_USER, UserError, print_error
from samestep.core.output import print_text
from samestep.core.paths import expand_home


def train_with(recipe: str, settings: Path, *, note: str = "", args: Sequence[str] | None = None) -> int:
    """`samestep train RECIPE --config settings`, with what was typed after the script's name; returns the exit code.

    A config file that was typed takes the place of `settings`: `--config FILE` is relative to the working directory,
    `--config-path FOLDER --config-name NAME` to the script's folder, as in Hydra's scripts. A run that is resumed with
    `--resume RUN` has its own settings. The note is the first line that the first process prints: how this project
    differs from the scripts that its users know.
    """
    typed = list(sys.argv[1:] if args is None else args)
    if note and is_first_process(os.environ):
        print_text(note)
    try:
        resumed = split_options(typed, ["resume"])[0].get("resume")
        if resumed is not None and not Path(resumed).is_file():  # a file holds weights, which a new run begins with
            return main(["train", *typed, f"--recipe={recipe}"])
        typed = with_config_file(typed, Path(sys.argv[0]).resolve().parent, settings)
    except UserError as error:
        print_error(str(error))
        return EXIT_USER
    return main(["train", recipe, *typed])


def with_config_file(args: Sequence[str], scripts: Path, settings: Path) -> list[str]:
    """The args with the config file that they name, by its whole path if it is given as Hydra's scripts have it; or
    with `settings`. `scripts` is the script's folder."""
    options, rest = split_options(args, ("config-path", "config-name"))
    if "config" in split_options(args, ("config",))[0]:
        return list(args)
    if not options:
        return [f"--config={settings}", *args]
    typed = expand_home(options.get("config-path", "."))
    folder = Path(os.path.abspath(scripts / typed))
    if not folder.is_dir() and typed.is_dir():
        raise UserError(
            f"--config-path is relative to the script's folder, {scripts}, which has no {typed}; write "
            f"--config-path={shlex.quote(str(typed.absolute()))}"
        )
    name = [f"--config-name={options['config-name']}"] if "config-name" in options else []
    return [f"--config-path={folder}", *name, *rest]
