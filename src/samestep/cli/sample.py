"""`samestep sample RUN [--prompt TEXT] [--samples N] [settings]`."""

from collections.abc import Sequence

from samestep.cli.recipe_words import amended
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.overrides import take
from samestep.train.finding import find_recipe
from samestep.train.opening import RunRecord, find_run
from samestep.train.weights import find_weights

HELP = """samestep sample RUN [--prompt TEXT] [--samples N] [settings, such as --sampling.temperature 0.5]

Generates from the newest whole checkpoint of a run."""


def run(words: Sequence[str]) -> int:
    """Print samples of a trained run."""
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return EXIT_DONE
    rundir = find_run(words[0])
    options, settings = take(words[1:], ["prompt", "samples"])
    record = RunRecord.read(rundir)
    assert record is not None
    recipe = find_recipe(record.recipe)
    if recipe.sample is None:
        raise UserError(f"the recipe {record.recipe!r} does not generate anything; there is nothing to sample")
    if not options.get("samples", "1").isdigit():
        raise UserError(f"--samples must be a whole number, not {options['samples']!r}")
    config = amended(recipe, record.config, settings)
    weights = find_weights(rundir.path)
    for text in recipe.sample(config, weights, options.get("prompt", ""), int(options.get("samples", "1"))):
        print(text)
    return EXIT_DONE
