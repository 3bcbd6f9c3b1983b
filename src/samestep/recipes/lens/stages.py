"""What a run does: what is refused before it is recorded, and its stages.

The stages are tokens, the built-in model (if none is named), activations (if they are dumped), a warm start, training,
rewards, evaluation.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from samestep import TRAINING_SETTINGS, Fit, LanguageModel, Stage, UserError, World
from samestep.kit.language_model import BUILT_IN
from samestep.kit.named_model import is_at_hand
from samestep.recipes.lens.activations import DUMP, build_dump, dump_folder, dump_inputs, trained_beside
from samestep.recipes.lens.config import EncoderAloneConfig, GrpoConfig, LensConfig, WarmStartConfig
from samestep.recipes.lens.evaluation import build_evaluation, write_results
from samestep.recipes.lens.language_model import check_weights, open_model, prompt_tokens
from samestep.recipes.lens.pretraining import PRETRAIN, build_pretrain, keep_weights
from samestep.recipes.lens.task import (
    FVE,
    LensEncoder,
    LensRewards,
    LensStage,
    LensTraining,
    LensWarmStart,
)
from samestep.recipes.lens.texts import load_texts
from samestep.recipes.lens.token_rows import PRETOKENIZE, build_pretokenize, remove_shares
from samestep.train.api.dump import dump_config

WARM_START, ENCODER, TRAIN, GRPO = "warm_start", "encoder", "train", "grpo"
BEST = (f"val/{FVE}", "max")
"""Not the loss: its weights change with the step, so that its values at two steps are not comparable."""
SHOWN = ("loss", "mse", "kl", "reward", BEST[0], "val/loss", "val/mse", "val/kl")
_OF_DRAWN_TOKENS = (
    *("kl_base_weight", "lm_base_weight", "entropy_weight", "mse_weight"),
    *("gumbel_tau_schedule.*", "alpha_schedule.*", "stop_gradient_delta"),
)
_OF_TRAINING = (
    *_OF_DRAWN_TOKENS,
    *("t_text", "decoder_prompt", "kv_cache", "init_from"),
    *("trainable_components.*", "warm_start.*", "encoder_alone.*", "through_draws", "grpo.*", "evaluation.*"),
)
_OF_SAMPLES = ("layer_l", "activation_dumper.mode", "activation_dumper.*_samples", "activation_dumper.*position")


def resolve_config(config: LensConfig) -> LensConfig:
    """The configuration with the whole path of its dump, if its layer, its lengths, its dump and its texts are
    there."""
    model = _model_at_hand(config)
    if model is not None:
        _check_layers(config, model)
        _check_lengths(config, model)
    folder = dump_folder(config)
    if folder is None:
        if config.model_name is None and model is not None:
            load_texts(config.data, config.seed)
        return config
    found = dump_inputs(folder)
    model_name, layer = found.get("model"), found.get("layer")
    if (model_name == BUILT_IN) != (config.model_name is None):
        raise UserError(f"Set model_name, or name another dump: that in {folder} is of another model, {model_name}.")
    if layer != config.layer_l:
        raise UserError(f"Set layer_l to {layer}, or name another dump: that in {folder} is of that layer.")
    if config.model_name is None:
        check_weights(config.pretrain.network, trained_beside(folder))
    return replace(config, activation_dumper=replace(config.activation_dumper, source=str(folder)))


def _model_at_hand(config: LensConfig) -> LanguageModel | None:
    """The model with random weights, or None if it may have to be downloaded."""
    return open_model(config, World.single()) if is_at_hand(config.model_name) else None


def _check_lengths(config: LensConfig, model: LanguageModel) -> None:
    limit, columns = model.limit, config.activation_dumper.seq_len
    if limit is None:
        return
    if columns > limit and config.activation_dumper.source is None:
        raise UserError(
            f"Set activation_dumper.seq_len to {limit} or less: the model reads no more tokens; it is {columns}."
        )
    prompt = 1 + sum(map(len, prompt_tokens(model, config.decoder_prompt)))
    # The decoder does not read its last token, the encoder reads all after the one that begins a text.
    longest = min(limit - prompt + 1, limit - int(model.bos is not None))
    if config.t_text > longest:
        raise UserError(
            f"Set t_text to {longest} or less: the model reads {limit} tokens, of which the decoder's prompt takes "
            f"{prompt}; it is {config.t_text}."
            if longest > 0
            else f"Shorten decoder_prompt: it has {prompt} tokens, and the model reads {limit}."
        )


def _check_layers(config: LensConfig, model: LanguageModel) -> None:
    named = {"layer_l": config.layer_l, "trainable_components.encoder.layer": config.trainable_components.encoder.layer}
    which, or_set = ("the model", "Set") if config.model_name else ("the built-in one", "Name a model_name, or set")
    for name, layer in named.items():
        if layer is not None and not 0 <= layer < model.layers:
            raise UserError(
                f"{or_set} {name} from 0 to {model.layers - 1}: {which} has {model.layers} layers; it is {layer}."
            )


def stages(config: LensConfig) -> list[Stage]:
    """From training alone, with another run's dump, to seven."""
    found = _preparation(config) if config.activation_dumper.source is None else []
    later = ("through_draws", "grpo.*", "evaluation.*")
    stage = partial(Stage, validate=LensStage.validate, best=BEST, ignores=later, shown=SHOWN)
    with_train = partial(stage, gpus_of=TRAIN) if config.through_draws else stage
    begun: dict[str, Any] = {}
    if config.warm_start.max_steps:
        own = {"config": _warm_start_config, "ignores": (*later, "encoder_alone.*", *_OF_DRAWN_TOKENS)}
        found.append(with_train(WARM_START, LensWarmStart, **own))
        begun = {"start": f"{WARM_START}:best", "config": _validated_from_start}
    if config.encoder_alone.max_steps:
        own = {**begun, "config": _encoder_config, "ignores": (*later, *_OF_DRAWN_TOKENS)}
        found.append(with_train(ENCODER, LensEncoder, **own))
        begun = {"start": f"{ENCODER}:best", "config": _validated_from_start}
    if config.through_draws:
        found.append(stage(TRAIN, LensTraining, validate=LensTraining.validate, **begun))
    if config.grpo.max_steps:
        before = found[-1].name
        own = {"config": _grpo_config, "ignores": ("evaluation.*",)}
        found.append(with_train(GRPO, partial(LensRewards, began_with=before), start=f"{before}:best", **own))
    if config.evaluation.rows:
        build = partial(build_evaluation, trained_by=found[-1].name)
        unused = TRAINING_SETTINGS  # a training with other settings is not taken over, and so neither is this
        found.append(Stage("eval", build, finish=write_results, config=_evaluation_config, ignores=unused))
    return found


def _preparation(config: LensConfig) -> list[Stage]:
    unused = (*TRAINING_SETTINGS, *_OF_TRAINING)
    ignored = (*unused, *_OF_SAMPLES, "activation_dumper.dtype", "pretrain.*")
    found = [Stage(PRETOKENIZE, build_pretokenize, finish=remove_shares, config=_dump_config, ignores=ignored)]
    if config.model_name is None:
        found.append(
            Stage(
                PRETRAIN,
                build_pretrain,
                validate=Fit.validate,
                best=("val/nats", "min"),
                finish=keep_weights,
                config=_pretrain_config,
                ignores=(*_OF_TRAINING, *_OF_SAMPLES),
            )
        )
    if config.activation_dumper.mode == "dumped":
        found.append(Stage(DUMP, build_dump, config=_dump_config, ignores=unused))
    return found


def _pretrain_config(config: LensConfig) -> LensConfig:
    own = config.pretrain
    return replace(
        config,
        max_steps=own.max_steps,
        global_batch_size=own.batch_size,
        batch_size=own.batch_size,
        learning_rate=own.learning_rate,
        validate_every=0,
    )


def _dump_config(config: LensConfig) -> LensConfig:
    return dump_config(config, config.activation_dumper)


def _validated_from_start(config: LensConfig) -> LensConfig:
    """Of a stage that begins with a trained lens: what makes it worse is not taken for the best."""
    return replace(config, validate_at_start=True)


def _warm_start_config(config: LensConfig) -> LensConfig:
    return _with_own_steps(config, config.warm_start)


def _encoder_config(config: LensConfig) -> LensConfig:
    parts, steps = config.trainable_components, config.encoder_alone.max_steps
    decoder = {part: f"{steps}s" for part in parts.trained if part.startswith("decoder.")}
    constant = replace(parts, freeze_until={**parts.freeze_until, **decoder})
    return _validated_from_start(replace(_with_own_steps(config, config.encoder_alone), trainable_components=constant))


def _grpo_config(config: LensConfig) -> LensConfig:
    rows = config.grpo.activations
    if rows is not None:
        config = replace(config, global_batch_size=rows, batch_size=min(config.batch_size, rows))
    return _validated_from_start(_with_own_steps(config, config.grpo))


def _with_own_steps(config: LensConfig, own: WarmStartConfig | EncoderAloneConfig | GrpoConfig) -> LensConfig:
    rate = config.learning_rate if own.learning_rate is None else own.learning_rate
    return replace(config, max_steps=own.max_steps, learning_rate=rate)


def _evaluation_config(config: LensConfig) -> LensConfig:
    return replace(config, compile=False)  # it does not run long enough to compile anything


def describe(config: LensConfig) -> dict[str, str]:
    """Data and model, for the banner of every stage."""
    shape, dumper = config.pretrain.network, config.activation_dumper
    own = f"built-in, {shape.n_layers} layers of width {shape.d_model}, on bytes"
    own_samples = f"{dumper.mode}, {dumper.position} positions in {dumper.seq_len} tokens"
    return {
        "dataset": config.data.name,
        "model": f"{config.model_name or own}, layer {config.layer_l}",
        "activations": f"dump of {dumper.source}" if dumper.source else own_samples,
    }
