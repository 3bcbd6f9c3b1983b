"""Settings that have no effect beside others."""

from samestep import NoEffect
from samestep.recipes.lens.config import LensConfig


def _has_lora(config: LensConfig) -> bool:
    parts = config.trainable_components
    return "lora" in (parts.decoder.base_model, parts.encoder.base_model)


NO_EFFECT = (
    NoEffect(
        (
            "data.*",
            *(f"activation_dumper.{name}" for name in ("num_samples", "validation_samples", "seq_len", "position")),
            *(f"activation_dumper.{name}" for name in ("min_position", "batch_size", "dtype", "save_every")),
        ),
        lambda c: c.activation_dumper.source is not None,
        "the activations of activation_dumper.source are taken as they are; leave out that to dump others, or this",
    ),
    NoEffect(
        ("pretrain.max_steps", "pretrain.batch_size", "pretrain.learning_rate"),
        lambda c: c.activation_dumper.source is not None,
        "the model beside activation_dumper.source is trained already; leave out that or this",
    ),
    NoEffect(
        "pretrain.*",
        lambda c: c.model_name is not None,
        "it is for the built-in model, and model_name names another; leave out that or this",
    ),
    NoEffect(
        "tokenizer_name",
        lambda c: c.model_name is None,
        "the built-in model reads bytes; set model_name, or leave it out",
    ),
    NoEffect(
        "warm_start.*",
        lambda c: not c.warm_start.max_steps,
        "there is no warm start; set warm_start.max_steps, or leave it out",
    ),
    NoEffect(
        "grpo.*",
        lambda c: not c.grpo.max_steps,
        "there is no stage with rewards; set grpo.max_steps, or leave it out",
    ),
    NoEffect(
        "activation_dumper.min_position",
        lambda c: c.activation_dumper.position == "midpoint",
        "positions are drawn with activation_dumper.position=random only; set that, or leave it out",
    ),
    NoEffect(
        "activation_dumper.dtype",
        lambda c: c.activation_dumper.mode == "live",
        "live activations are not stored; set activation_dumper.mode=dumped, or leave it out",
    ),
    NoEffect(
        "trainable_components.lora.*",
        lambda c: not _has_lora(c),
        "no part is trained by adapters; set base_model=lora in trainable_components, or leave it out",
    ),
    NoEffect(
        ("gumbel_tau_schedule.end", "gumbel_tau_schedule.num_steps"),
        lambda c: c.gumbel_tau_schedule.type == "constant",
        "a constant schedule has its start all the time; set gumbel_tau_schedule.type=linear, or leave it out",
    ),
    NoEffect(
        "alpha_schedule.*",
        lambda c: not c.lm_base_weight,
        "it is a factor of lm_base_weight, which is 0; set that, or leave it out",
    ),
    NoEffect(
        ("alpha_schedule.end", "alpha_schedule.num_steps"),
        lambda c: c.alpha_schedule.type == "constant",
        "a constant schedule has its start all the time; set alpha_schedule.type=linear, or leave it out",
    ),
    NoEffect(
        "data.text_field",
        lambda c: c.data.path is None or c.data.path.endswith(".txt"),
        "it is the column of a table; name one with data.path, or leave it out",
    ),
)
"""Settings that have no effect beside others."""
