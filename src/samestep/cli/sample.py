"""`samestep sample RUN [--prompt TEXT] [--samples N] [settings]`."""

from collections.abc import Sequence
from dataclasses import replace

from samestep.cli.recipe_words import amended
from samestep.core.config import dump
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.overrides import take
from samestep.train.trained import open_trained

HELP = """samestep sample RUN [--prompt TEXT] [--samples N] [settings, such as --sampling.temperature 0.5]

Generates from the newest whole checkpoint of a run."""


def run(words: Sequence[str]) -> int:
    """Print samples of a trained run."""
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return EXIT_DONE
    options, settings = take(words[1:], ["prompt", "samples"])
    trained = open_trained(words[0])
    generate = trained.recipe.sample
    if generate is None:
        raise UserError(f"the recipe {trained.name!r} does not generate anything; there is nothing to sample")
    if not options.get("samples", "1").isdigit():
        raise UserError(f"--samples must be a whole number, not {options['samples']!r}")
    trained = replace(trained, config=amended(trained.recipe, dump(trained.config), settings))
    for text in generate(trained, options.get("prompt", ""), int(options.get("samples", "1"))):
        print(text)
    return EXIT_DONE
