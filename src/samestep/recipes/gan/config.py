"""Every setting of the recipe beyond those that all recipes share, named sets of values, and what is refused before a
run is recorded: with the mistake corrected, the same command then works."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep import Config, GenerationConfig, NoEffect, UserError, free
from samestep.core.config.bounds import Count, CountOrZero, NotNegative, Positive, Share
from samestep.core.config.checked import CheckedConfig
from samestep.data.records.reading import only_for_records
from samestep.kit.model_settings import without_effect
from samestep.models.hub_download import hub_model
from samestep.recipes.gan.data import DataConfig, load, load_pairs
from samestep.recipes.gan.evaluation import BenchmarkConfig
from samestep.recipes.gan.judges import JudgeConfig
from samestep.recipes.gan.objectives import Objective
from samestep.recipes.gan.players import PlayerConfig
from samestep.recipes.gan.rewards import LOG_ODDS, PROBABILITY, find_reward
from samestep.train.record.config import Checkpoints, named_source
from samestep.train.record.run_record import run_path


@dataclass(frozen=True)
class ReplayConfig(CheckedConfig):
    """Opponents from earlier steps, so that neither side forgets what it could do."""

    keep: CountOrZero = 0
    """Earlier states of each side that are kept, in memory and in checkpoints; 0: none."""
    every: Count = 100
    """Steps after which both sides are kept as they are."""
    share: Share = 0.5
    """How often an earlier opponent plays: an earlier generator in the judge's updates before the last of a step (see
    judge_steps), an earlier judge where the generator's rewards come from."""


@dataclass(frozen=True)
class GanConfig(Config):
    """A generator of text against a judge."""

    preset: str = "tiny"
    """A named set of values."""
    data: DataConfig = field(default_factory=DataConfig)
    """Prompts, and what people wrote for them."""
    model_name: str | None = None
    """The model of both players, where they name none of their own: a folder, org/name of the Hub, or a run."""
    generator: PlayerConfig = field(default_factory=PlayerConfig)
    """The model that writes."""
    judge: PlayerConfig = field(default_factory=PlayerConfig)
    """The model that tells what a person wrote from what the generator wrote."""
    writing: GenerationConfig = field(default_factory=GenerationConfig)
    """How the generator writes."""
    judging: JudgeConfig = field(default_factory=JudgeConfig)
    """How the judge tells texts apart."""
    objective: Objective = field(default_factory=Objective)
    """What the generator learns from."""
    judge_learning_rate: NotNegative | None = None
    """Peak learning rate of the judge; null: learning_rate."""
    judge_steps: Count = 1
    """Updates of the judge per step, each on texts of its own."""
    judge_every: Count = 1
    """The judge learns in every so many steps; while the generator waits for it (generator_pauses_below), in all."""
    reward: str = "probability"
    """What the generator is rewarded with: probability, that the judge takes its text for a person's; log_odds, the
    same as log-odds, which says more where the judge is sure; or module:function, a function of yours of one text, on
    the command line alone."""
    reward_clip: Positive = 4.0
    """reward=log_odds: beyond this it counts as this."""
    mle_epochs: CountOrZero = 0
    """Epochs in which the generator first learns the human texts themselves, in a stage of its own."""
    mle_learning_rate: NotNegative | None = None
    """Peak learning rate of that stage; null: learning_rate."""
    judge_pauses_above: Share = 1.0
    """The judge does not learn while its accuracy, a moving average over some ten rollouts, is above this."""
    generator_pauses_below: Share = 0.0
    """The generator does not learn while that is below this."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Opponents from earlier steps."""
    keep_gathered: bool = free(True)
    """strategy=fsdp: while texts are written, gather the model that writes once and not for every token; each device
    then holds it in full meanwhile. Set false where it does not fit."""
    benchmark: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    """What both are measured on, as often as validate_every says."""
    rollouts_every: CountOrZero | None = free(None)
    """Steps after which some rollouts are written to rollouts.jsonl, and after the first; 0: never, null: as often as
    metrics."""
    checkpoint: Checkpoints = field(default_factory=lambda: Checkpoints(every_steps=20))
    """When to save, and what to keep."""

    def __post_init__(self) -> None:
        if not self.generator_pauses_below < self.judge_pauses_above:
            raise UserError("Set 0 <= generator_pauses_below < judge_pauses_above <= 1.")


_SMALL_NETWORK = {
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 2,
    "mlp_hidden_size": 32,
    "max_sequence_length": 512,
    "init_std": 0.1,
}
_VERIFY_NETWORK = {**_SMALL_NETWORK, "n_layers": 1}
_TEST_NETWORK = {**_SMALL_NETWORK, "d_model": 64, "n_heads": 4, "mlp_hidden_size": 192}
_TINY_NETWORK = {**_TEST_NETWORK, "max_sequence_length": 320, "init_std": 0.04}
_VERIFY: dict[str, Any] = {
    "data": {"max_story_length": 60, "limit": 40, "validation_fraction": 0.3},
    "benchmark": {"size": 5},
    "validate_every": 2,
    "generator": {"network": _VERIFY_NETWORK},
    "judge": {"network": _VERIFY_NETWORK},
    "judging": {"max_tokens": 12},
    "writing": {"max_new_tokens": 4},
    "distributed": {"dtype": "float64"},
    "global_batch_size": 7,
    "batch_size": 3,
    "max_steps": 4,
    "learning_rate": 3e-3,
}
# The benchmark is that of `verify`, where nothing but the objective differs.
_VERIFY_OBJECTIVE: dict[str, Any] = {**_VERIFY, "benchmark": {"size": 0}}
# None of these sets global_batch_size: --batch_size is for each process, as users of such scripts expect.
_TEST: dict[str, Any] = {
    "data": {"max_story_length": 200, "limit": 100},
    "generator": {"network": _TEST_NETWORK},
    "judge": {"network": _TEST_NETWORK},
    "judging": {"max_tokens": 48},
    "writing": {"max_new_tokens": 48},
    "batch_size": 8,
    "epochs": 5,
    "learning_rate": 1e-3,
}
# Each side waits for the other: the generator until the judge has something to teach, the judge while it wins.
_BALANCED: dict[str, Any] = {"judge_pauses_above": 0.75, "generator_pauses_below": 0.6}
_SMALL: dict[str, Any] = {
    **_BALANCED,
    "writing": {"max_new_tokens": 256},
    "batch_size": 4,
    "epochs": 20,
    "learning_rate": 1e-5,
    "warmup_ratio": 0.05,
    "weight_decay": 0.0,
}
_TINY: dict[str, Any] = {
    **_BALANCED,
    "data": {"min_story_length": 60, "max_story_length": 600, "validation_fraction": 0.2},
    "generator": {"network": _TINY_NETWORK},
    "judge": {"network": _TINY_NETWORK},
    "judging": {"max_tokens": 32},
    "writing": {"max_new_tokens": 32},
    "objective": {"kl_coef": 0.02},
    "mle_epochs": 6,
    "mle_learning_rate": 4e-3,
    "learning_rate": 5e-4,
    "judge_learning_rate": 2e-3,
    "schedule": "constant",
    "global_batch_size": 32,
    "batch_size": 16,
    "max_steps": 400,
    "validate_every": 40,
    "benchmark": {"size": 128},
}
PRESETS: dict[str, dict[str, Any]] = {
    # How the two learn from each other, in minutes on 2 CPU processes.
    "tiny": _TINY,
    # Whether everything works, in half a minute on 2 CPU processes, with the built-in network and Python's own text.
    "test": _TEST,
    # A language model of about a billion parameters on 4 GPUs, each of which holds both players: --model_name FOLDER.
    "small": _SMALL,
    # The same for as long as it takes on all GPUs, which share the weights, so that larger models fit; with .pt files.
    "full": {
        **_SMALL,
        "epochs": 100,
        "checkpoint": {"weights": True},
        "distributed": {"strategy": "fsdp"},
        "activation_checkpointing": "full",
    },
    # Milliseconds a step in float64.
    "verify": _VERIFY,
    "verify-grpo": {**_VERIFY_OBJECTIVE, "objective": {"kind": "grpo", "group_size": 2, "inner_epochs": 2, "parts": 2}},
    "verify-reinforce": {
        **_VERIFY,
        "judging": {"max_tokens": 12, "training": "policy_gradient"},
        "objective": {"kind": "reinforce", "kl_coef": 0.1},
        "judge_steps": 2,
        "replay": {"keep": 2, "every": 1, "share": 0.7},
    },
    "verify-spin": {**_VERIFY_OBJECTIVE, "objective": {"kind": "spin"}},
    # A reward function as one of the user's is named, and a judge that learns in every second step.
    "verify-reward": {
        **_VERIFY_OBJECTIVE,
        "reward": "samestep.recipes.gan.rewards:unrepeated",
        "judge_every": 2,
        "objective": {"kind": "reinforce"},
    },
}


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
        first = player.init_from
        if first and not Path(run_path(first, config.out)).exists() and hub_model(first) is None:
            raise UserError(
                f"Set {name}.init_from to a run, a checkpoint, a weight file or a model of the Hub (org/name); {first} "
                "does not exist."
            )
    if config.writing.temperature == 0 and config.objective.kind != "spin":
        raise UserError(
            f"Set writing.temperature above 0: {config.objective.kind} learns from completions that are drawn, and at "
            "0 there is only one for each prompt."
        )
    if config.reward == LOG_ODDS and config.judging.mode == "generative":
        raise UserError("Set judging.mode=verdict, or reward=probability: a generative judge has no odds.")
    if config.reward not in (PROBABILITY, LOG_ODDS):
        find_reward(config.reward)
    load(config.data, config.seed)
    if config.benchmark.pairs:
        load_pairs(config.data, config.benchmark.pairs)
    return config


NO_EFFECT = (
    only_for_records(lambda c: c.data.path is None),
    NoEffect(
        "data.too_long",
        lambda c: c.data.max_story_length is None,
        "no text is too long without data.max_story_length; set that, or leave it out",
    ),
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
        "reward",
        lambda c: c.objective.kind == "spin",
        "spin has no rewards; choose another objective.kind, or leave it out",
    ),
    NoEffect(
        "reward_clip",
        lambda c: c.reward != LOG_ODDS and c.judging.mode != "verdict",
        "only log-odds are clipped; set reward=log_odds, or leave it out",
    ),
    NoEffect(
        "judging.show_prompt",
        lambda c: c.judging.template is not None,
        "a template shows the prompt where it has {prompt}; leave out one of the two",
    ),
    NoEffect(
        "judging.max_prompt_tokens",
        lambda c: all(field != "prompt" for _, field in c.judging.parts()),
        "the judge is not shown the prompt; leave it out",
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
        "keep_gathered",
        lambda c: c.distributed.strategy != "fsdp",
        "only distributed.strategy=fsdp shards the models; set that, or leave it out",
    ),
    NoEffect(
        "benchmark.collapse_factor",
        lambda c: not c.benchmark.size,
        "there is no benchmark; set benchmark.size, or leave it out",
    ),
    NoEffect(
        "validate_every",
        lambda c: not c.benchmark.size and not c.benchmark.pairs and not c.mle_epochs,
        "there is no benchmark to run; set benchmark.size, or leave it out",
    ),
    *without_effect(
        "generator", lambda c: c.generator, lambda c: bool(c.generator.model or c.model_name), shape="network"
    ),
    *without_effect("judge", lambda c: c.judge, lambda c: bool(c.judge.model or c.model_name), shape="network"),
    NoEffect(
        "model_name",
        lambda c: bool(c.generator.model and c.judge.model),
        "both players name a model of their own; leave out generator.model, judge.model or this",
    ),
)
"""Settings that have no effect beside others."""
