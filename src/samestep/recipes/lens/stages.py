"""The stages: the built-in model (if none is named), tokens, activations (if they are dumped), a warm start, training,
rewards, evaluation."""

from dataclasses import replace
from functools import partial

from samestep import TRAINING_SETTINGS, Fit, Stage
from samestep.recipes.lens import dump, evaluation, grpo, pretokenize, pretrain, task, warm_start
from samestep.recipes.lens.config import GrpoConfig, LensConfig, WarmStartConfig
from samestep.recipes.lens.dump import build_dump
from samestep.recipes.lens.evaluation import build_evaluation, write_results
from samestep.recipes.lens.grpo import LensRewards
from samestep.recipes.lens.pretokenize import build_pretokenize
from samestep.recipes.lens.pretrain import build_pretrain, keep_weights
from samestep.recipes.lens.task import FVE, LensStage, LensTraining
from samestep.recipes.lens.warm_start import LensWarmStart

BEST = (f"val/{FVE}", "max")
"""Not the loss: its weights change with the step, so that its values at two steps are not comparable."""
_OF_DRAWN_TOKENS = (
    *("kl_base_weight", "lm_base_weight", "entropy_weight", "mse_weight"),
    *("gumbel_tau_schedule.*", "alpha_schedule.*", "stop_gradient_delta"),
)
_OF_TRAINING = (
    *_OF_DRAWN_TOKENS,
    *("t_text", "decoder_prompt", "kv_cache", "init_from"),
    *("trainable_components.*", "warm_start.*", "grpo.*", "evaluation.*"),
)
_OF_SAMPLES = ("layer_l", "activation_dumper.mode", "activation_dumper.num_samples", "activation_dumper.*position")


def stages(config: LensConfig) -> list[Stage]:
    """From training alone, with another run's dump, to seven."""
    found: list[Stage] = []
    has_source = config.activation_dumper.source is not None
    if not has_source:
        found += _preparation(config)
    later = ("grpo.*", "evaluation.*")
    stage = partial(Stage, validate=LensStage.validate, best=BEST, ignores=later)
    with_train = partial(stage, gpus_of=task.STAGE)
    train = stage(task.STAGE, LensTraining, validate=LensTraining.validate)
    if config.warm_start.max_steps:
        ignored = (*later, *_OF_DRAWN_TOKENS)
        found.append(with_train(warm_start.STAGE, LensWarmStart, config=warm_start_config, ignores=ignored))
        train = replace(train, start=f"{warm_start.STAGE}:best", config=validated_from_start)
    found.append(train)
    if config.grpo.max_steps:
        start = f"{task.STAGE}:best"
        found.append(with_train(grpo.STAGE, LensRewards, config=grpo_config, start=start, ignores=("evaluation.*",)))
    if config.evaluation.rows:
        build = partial(build_evaluation, trained_by=found[-1].name)
        unused = TRAINING_SETTINGS  # a training with other settings is not taken over, and so neither is this
        found.append(Stage(evaluation.STAGE, build, finish=write_results, config=evaluation_config, ignores=unused))
    return found


def _preparation(config: LensConfig) -> list[Stage]:
    """What comes before training."""
    found: list[Stage] = []
    unused = (*TRAINING_SETTINGS, *_OF_TRAINING)
    if config.model_name is None:
        found.append(
            Stage(
                pretrain.STAGE,
                build_pretrain,
                validate=Fit.validate,
                best=("val/nats", "min"),
                finish=keep_weights,
                config=pretrain_config,
                ignores=(*_OF_TRAINING, *_OF_SAMPLES, "activation_dumper.validation_samples"),
            )
        )
    ignored = (*unused, *_OF_SAMPLES, "activation_dumper.validation_samples", "activation_dumper.dtype", "pretrain.*")
    found.append(Stage(pretokenize.STAGE, build_pretokenize, config=dump_config, ignores=ignored))
    if config.activation_dumper.mode == "dumped":
        found.append(Stage(dump.STAGE, build_dump, config=dump_config, ignores=unused))
    return found


def pretrain_config(config: LensConfig) -> LensConfig:
    """The settings of the stage that trains the built-in model."""
    own = config.pretrain
    return replace(
        config,
        max_steps=own.max_steps,
        global_batch_size=own.batch_size,
        batch_size=own.batch_size,
        learning_rate=own.learning_rate,
        validate_every=0,
    )


def dump_config(config: LensConfig) -> LensConfig:
    """The settings of stages that write tokens and activations: texts at once, and how much a kill may cost."""
    dumper = config.activation_dumper
    saves = replace(config.checkpoint, every_steps=dumper.save_every)
    return replace(config, batch_size=dumper.batch_size, checkpoint=saves)


def validated_from_start(config: LensConfig) -> LensConfig:
    """The settings of a stage that begins with a trained lens: what makes it worse is not taken for the best."""
    return replace(config, validate_at_start=True)


def warm_start_config(config: LensConfig) -> LensConfig:
    """The settings of the stage with given texts."""
    return _with_own_steps(config, config.warm_start)


def grpo_config(config: LensConfig) -> LensConfig:
    """The settings of the stage with rewards."""
    return validated_from_start(_with_own_steps(config, config.grpo))


def _with_own_steps(config: LensConfig, own: WarmStartConfig | GrpoConfig) -> LensConfig:
    rate = config.learning_rate if own.learning_rate is None else own.learning_rate
    return replace(config, max_steps=own.max_steps, learning_rate=rate)


def evaluation_config(config: LensConfig) -> LensConfig:
    """The settings of the last stage: it does not run long enough to compile anything."""
    return replace(config, compile=False)


def describe(config: LensConfig) -> dict[str, str]:
    """Data, model and objective, for the banner."""
    shape, dumper = config.pretrain.network, config.activation_dumper
    own = f"built-in, {shape.n_layers} layers of width {shape.d_model}, on bytes"
    weights = {
        "kl": config.kl_base_weight,
        "lm": config.lm_base_weight,
        "entropy": -config.entropy_weight,
        "mse": config.mse_weight,
    }
    own_samples = f"{dumper.mode}, {dumper.position} positions in {dumper.seq_len} tokens"
    return {
        "dataset": config.data.path or "pydoc_data.topics (the text inside Python)",
        "model": f"{config.model_name or own}, layer {config.layer_l}",
        "activations": f"dump of {dumper.source}" if dumper.source else own_samples,
        "explanation": f"{config.t_text} tokens",
        "trained": ", ".join(config.trainable_components.trained),
        "loss": " + ".join(f"{weight:g} {term}" for term, weight in weights.items() if weight).replace("+ -", "- "),
    }
