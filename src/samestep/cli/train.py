"""`samestep train RECIPE ...` and `samestep train --resume RUN`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samestep.cli.recipe_words import RecipeWords, amended
from samestep.core.config import changed, dump
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.overrides import take
from samestep.core.rundir import RunDir
from samestep.train.entry import enter
from samestep.train.finding import find_recipe
from samestep.train.opening import RunRecord, find_run
from samestep.train.recipe import Recipe

HELP = """samestep train RECIPE [--preset NAME] [--config FILE] [key=value | --key value ...]
samestep train --resume RUN [settings that may change, such as max_time=2h]

RECIPE is a recipe's name, the import path of your own (my_package.my_recipe), or a file (my_recipe.py).
`samestep config RECIPE` lists every setting. On several processes:
torchrun --nproc_per_node=2 -m samestep train RECIPE ..."""


def run(words: Sequence[str]) -> int:
    """Train; exit code 0 done, 2 user error, 75 preempted and resumable."""
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return EXIT_DONE
    return enter(lambda: _what(words))


def _what(words: Sequence[str]) -> tuple[str, Recipe, Any]:
    """The recipe and the configuration that the words name."""
    options, rest = take(words, ["resume"])
    if "resume" not in options:
        return _fresh(words)
    source = options["resume"]
    if Path(source).is_file():  # a plain weight file knows no recipe: it is where a new run begins
        return _fresh([*rest, f"--continue_from={source}"])
    rundir = find_run(source)
    record = RunRecord.read(rundir)
    assert record is not None
    recipe = find_recipe(record.recipe)
    return record.recipe, recipe, _resumed(recipe, record, rundir, rest)


def _fresh(words: Sequence[str]) -> tuple[str, Recipe, Any]:
    asked = RecipeWords.read(words, "train")
    recipe = asked.recipe()
    return asked.name, recipe, asked.config(recipe)


def _resumed(recipe: Recipe, record: RunRecord, rundir: RunDir, words: Sequence[str]) -> Any:
    """The run's own configuration, with changes only where they do not shape its course."""
    data = {**record.config, "name": rundir.path.name, "out": str(rundir.path.parent)}
    config = amended(recipe, data, words)
    fixed = changed(record.config, dump(config), recipe.config)
    if fixed:
        raise UserError(
            f"{', '.join(fixed)} cannot change when {rundir.path} is resumed, since the run would be another one; "
            f"leave it out, or start a new run with init_from={rundir.path}"
        )
    return config
