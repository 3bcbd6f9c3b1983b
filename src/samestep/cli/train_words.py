"""What the words of `samestep train` name: a recipe with its configuration, or a run to resume."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samestep.cli.recipe_words import RecipeWords, amended
from samestep.core.config import changed, dump
from samestep.core.errors import UserError
from samestep.core.overrides import take
from samestep.core.rundir import RunDir
from samestep.train.finding import find_recipe, located
from samestep.train.opening import RunRecord, find_run
from samestep.train.recipe import Recipe


def chosen(words: Sequence[str]) -> tuple[str, Recipe, Any]:
    """The recipe's name, the recipe, and the configuration."""
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
    return located(asked.name), recipe, asked.config(recipe)


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
