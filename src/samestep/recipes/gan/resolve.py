"""What is refused before a run is recorded: with the mistake corrected, the same command then works."""

from pathlib import Path

from samestep import NoEffect, UserError
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import load
from samestep.train.record.config import named_source
from samestep.train.record.run_record import run_path

WEIGHT_FILES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


def resolve_config(config: GanConfig) -> GanConfig:
    """The configuration as it is, if it can be trained with: its data can be read, and its first weights are found and
    are for one model."""
    source = named_source(config)
    if source and Path(source).suffix in WEIGHT_FILES:
        raise UserError(
            f"Say which model begins with {source}: generator.init_from={source} or judge.init_from={source}; a weight "
            "file holds one of the two."
        )
    for name, player in (("generator", config.generator), ("judge", config.judge)):
        if player.init_from and not Path(run_path(player.init_from, config.out)).exists():
            raise UserError(
                f"Set {name}.init_from to a run, a checkpoint or a weight file; {player.init_from} does not exist."
            )
    if config.writing.temperature == 0 and config.objective.kind != "spin":
        raise UserError(
            f"Set writing.temperature above 0: {config.objective.kind} learns from completions that are drawn, and at "
            "0 there is only one for each prompt."
        )
    load(config.data, config.seed)
    return config


NO_EFFECT = (
    NoEffect(
        ("judging.answer_tokens", "judging.temperature", "judging.unparsed_fools"),
        lambda c: c.judging.mode == "verdict",
        "with judging.mode=verdict the judge writes nothing; set judging.mode=generative, or leave it out",
    ),
    NoEffect(
        "judging.training",
        lambda c: c.judging.mode == "generative",
        "a generative judge always learns by policy gradient; set judging.mode=verdict, or leave it out",
    ),
    NoEffect(
        "objective.clip_eps",
        lambda c: c.objective.kind not in ("ppo", "grpo"),
        "only ppo and grpo clip; set objective.kind to one of them (--use_ppo), or leave it out",
    ),
    NoEffect(
        ("objective.entropy_coef", "objective.kl_coef"),
        lambda c: c.objective.kind == "spin",
        "spin has no such term; choose another objective.kind, or leave it out",
    ),
    NoEffect(
        ("objective.inner_epochs", "objective.parts"),
        lambda c: c.objective.kind == "spin" and c.objective.inner_epochs * c.objective.parts > 1,
        "spin makes one update a step; choose another objective.kind, or leave it out",
    ),
    NoEffect(
        "objective.spin_beta",
        lambda c: c.objective.kind != "spin",
        "it is for objective.kind=spin; set that, or leave it out",
    ),
    NoEffect(
        "mle_learning_rate",
        lambda c: not c.mle_epochs,
        "there is no stage that learns the human texts; set mle_epochs, or leave it out",
    ),
    NoEffect(
        "replay.*", lambda c: not c.replay.keep, "no earlier opponents are kept; set replay.keep, or leave it out"
    ),
    NoEffect(
        "benchmark.*", lambda c: not c.benchmark.size, "there is no benchmark; set benchmark.size, or leave it out"
    ),
    NoEffect(
        "validate_every",
        lambda c: not c.benchmark.size and not c.mle_epochs,
        "there is no benchmark to run; set benchmark.size, or leave it out",
    ),
    NoEffect(
        "generator.network.*",
        lambda c: bool(c.generator.model or c.model_name),
        "it is the shape of the built-in network, and a model is named; leave out one of the two",
    ),
    NoEffect(
        "judge.network.*",
        lambda c: bool(c.judge.model or c.model_name),
        "it is the shape of the built-in network, and a model is named; leave out one of the two",
    ),
    NoEffect(
        "model_name",
        lambda c: bool(c.generator.model and c.judge.model),
        "both players name a model of their own; leave out generator.model, judge.model or this",
    ),
)
"""Settings that have no effect beside others."""
