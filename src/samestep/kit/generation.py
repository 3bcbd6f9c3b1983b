"""Writing with a language model: generators that end where its texts end and never write what it must not."""

from dataclasses import replace

from samestep.kit.language_model import LanguageModel
from samestep.train.api.bench import Bench
from samestep.train.api.generation import GenerationConfig, LocalGenerator
from samestep.train.learner.draws import Draws
from samestep.world.world import World


def generator_in_stage(
    bench: Bench,
    model: LanguageModel,
    purpose: str,
    config: GenerationConfig,
    in_step: bool = True,
    keep_gathered: bool = False,
) -> LocalGenerator:
    """For a network of this stage. Only inside of a step may it be left for a stop: after the updates of a step, these
    would be lost."""
    special, stop = (model.eos, model.pad, model.forbidden), bench.check_stop if in_step else None
    draws = bench.draws(purpose)
    return LocalGenerator(config, draws, bench.world, *special, check_stop=stop, keep_gathered=keep_gathered)


def generator_outside(
    model: LanguageModel, purpose: str, config: GenerationConfig, seed: int, world: World, rows_at_once: int
) -> LocalGenerator:
    """For a network that is only used, where nothing is trained."""
    special = (model.eos, model.pad, model.forbidden)
    return LocalGenerator(replace(config, rows_at_once=rows_at_once), Draws(purpose, seed), world, *special)
