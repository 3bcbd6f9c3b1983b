"""The stages: the reference's log-probabilities, if they are cached, and training."""

from functools import partial

from samestep import TRAINING_SETTINGS, Bench, Fit, Stage, World
from samestep.recipes.dpo.config import DpoConfig
from samestep.recipes.dpo.families import Family
from samestep.recipes.dpo.protein_family import ProteinFamily
from samestep.recipes.dpo.reference import REFERENCE, build_dump
from samestep.recipes.dpo.task import Preferences
from samestep.recipes.dpo.text_family import TextFamily
from samestep.recipes.dpo.weight_files import WeightFiles

TRAIN = "dpo"
_UNUSED_BY_REFERENCE = (*TRAINING_SETTINGS, "objective.*", "bucketed", "sampling_temperature")


def open_family(config: DpoConfig, world: World) -> Family:
    """The family of a resolved configuration. Collective, since a model may be downloaded."""
    return TextFamily(config, world) if config.family == "text" else ProteinFamily(config, world)


def stages(config: DpoConfig) -> list[Stage]:
    """One or two."""
    train = Stage(TRAIN, build, validate=Fit.validate, best=("val/loss", "min"), hooks=hooks)
    if config.reference == "live":
        return [train]
    return [Stage(REFERENCE, partial(build_dump, open_family=open_family), ignores=_UNUSED_BY_REFERENCE), train]


def build(bench: Bench) -> Preferences:
    """Training."""
    return Preferences(bench, open_family(bench.config, bench.world))


def hooks(task: Preferences, bench: Bench) -> list[WeightFiles]:
    """Weight files for other programs."""
    config: DpoConfig = bench.config
    is_wanted = task.family.files_by_default if config.pt_files is None else config.pt_files
    return [WeightFiles(task, bench)] if is_wanted else []


def describe(config: DpoConfig) -> dict[str, str]:
    """Data, model and objective, for the banner."""
    objective = config.objective
    more = {"sft": objective.sft_coef, "diversity": objective.diversity_lambda}
    added = "".join(f", {name} {value:g}" for name, value in more.items() if value)
    return {
        "dataset": config.data.train or "pairs that come with the recipe",
        "model": f"{config.model.name or 'built-in'} ({config.family})"
        + (f", LoRA of rank {config.model.lora_rank}" if config.family == "text" and config.model.lora_rank else ""),
        "objective": f"{objective.loss_type}, beta {objective.beta:g}{added}",
        "reference": config.reference,
    }
