"""Named sets of values, and settings that have no effect beside others."""

from typing import Any

from samestep import NoEffect
from samestep.data.records.reading import only_for_records
from samestep.recipes.lens.config import LensConfig

# 13 samples in batches of 6 end an epoch in a step with one row, which 2 and 3 ranks share.
_VERIFY: dict[str, Any] = {
    "data": {"limit": 14, "validation_fraction": 0.2, "test_fraction": 0.2},
    "pretrain": {
        "network": {
            "d_model": 16,
            "n_layers": 2,
            "n_heads": 2,
            "mlp_hidden_size": 32,
            "max_sequence_length": 64,
            "init_std": 0.1,
        },
        "max_steps": 3,
        "batch_size": 5,
    },
    "activation_dumper": {
        "seq_len": 16,
        "min_position": 3,
        "num_samples": 13,
        "validation_samples": 7,
        "test_samples": 7,
        "batch_size": 3,
        "save_every": 2,
    },
    "layer_l": 0,
    "t_text": 3,
    "decoder_prompt": "a<embed>b",
    "entropy_weight": 0.01,
    "alpha_schedule": {"type": "linear", "start": 0.0, "end": 1.0, "num_steps": "3s"},
    "gumbel_tau_schedule": {"type": "exponential", "start": 1.0, "end": 0.5, "num_steps": "1e"},
    "distributed": {"dtype": "float64"},
    "global_batch_size": 6,
    "batch_size": 2,
    "max_steps": 4,
    "validate_every": 2,
    "learning_rate": 3e-3,
    "evaluation": {"best_of": 2},
}
PRESETS: dict[str, dict[str, Any]] = {
    # A small model on bytes is trained, its activations are dumped, and explained in text by all kinds of training: two
    # minutes on 2 CPU processes.
    "tiny": {
        "pretrain": {
            "network": {
                "d_model": 64,
                "n_layers": 4,
                "n_heads": 4,
                "mlp_hidden_size": 192,
                "max_sequence_length": 128,
                "init_std": 0.04,
            },
            "max_steps": 300,
            "batch_size": 64,
            "learning_rate": 4e-3,
        },
        "activation_dumper": {"seq_len": 24, "validation_samples": 512, "test_samples": 512, "batch_size": 128},
        "layer_l": 1,
        "t_text": 4,
        "decoder_prompt": "<embed>",
        "kl_base_weight": 0.1,
        "lm_base_weight": 0.01,
        "trainable_components": {
            "decoder": {"base_model": True, "output_head": True},
            "encoder": {"base_model": True},
        },
        "global_batch_size": 128,
        "batch_size": 64,
        "warm_start": {"max_steps": 200, "learning_rate": 6e-3},
        "max_steps": 50,
        "grpo": {"max_steps": 100, "learning_rate": 1e-3},
        "validate_every": 100,
        "learning_rate": 5e-4,
        "weight_decay": 0.0,
        "warmup_ratio": 0.05,
    },
    # GPT-2 with shared frozen parts, as conf/gpt2_frozen.yaml of a project has it. None of its values sets
    # global_batch_size: batch_size is for each process, as users of such scripts expect.
    "gpt2": {
        "model_name": "openai-community/gpt2",
        "layer_l": 6,
        "t_text": 10,
        "activation_dumper": {"seq_len": 64, "dtype": "float32"},
        "batch_size": 32,
        "learning_rate": 1e-4,
        "weight_decay": 0.0,
        "warmup_ratio": 0.02,
    },
    # A language model of some hundred million parameters on one GPU, --model_name FOLDER, without training through
    # drawn tokens: a warm start, the encoder alone, rewards. Found with SmolLM2-135M (docs/results/lens.md).
    "small": {
        "layer_l": 10,
        "t_text": 8,
        "activation_dumper": {
            "mode": "live",
            "seq_len": 64,
            "dtype": "float32",
            "num_samples": 1_000_000,
            "validation_samples": 512,
            "test_samples": 2048,
            "batch_size": 512,
        },
        "trainable_components": {"decoder": {"base_model": True}, "encoder": {"base_model": True}},
        "through_draws": False,
        "global_batch_size": 512,
        "batch_size": 512,
        "weight_decay": 0.0,
        "warmup_ratio": 0.04,
        "warm_start": {"max_steps": 2000, "learning_rate": 5e-4},
        "encoder_alone": {"max_steps": 200, "learning_rate": 1e-4},
        "grpo": {"max_steps": 1000, "learning_rate": 1e-4, "activations": 128, "group_size": 8, "kl_weight": 0.02},
        "validate_every": 100,
    },
    # Milliseconds a step in float64: a dump, copies of the model, everything trained.
    "verify": {
        **_VERIFY,
        "trainable_components": {
            "decoder": {"base_model": True, "output_head": True},
            "encoder": {"base_model": True, "layer": 1},
            "learning_rate_multipliers": {"decoder.prompt": 0.1},
            "freeze_until": {"encoder.base_model": "2s"},
        },
    },
    # Activations with every batch, adapters, a warm start, the decoder without a cache, gradients through Delta.
    "verify-live": {
        **_VERIFY,
        "warm_start": {"max_steps": 3, "learning_rate": 1e-2, "mse_weight": 0.5},
        "activation_dumper": {**_VERIFY["activation_dumper"], "mode": "live", "position": "midpoint"},
        "trainable_components": {
            "decoder": {"base_model": "lora"},
            "encoder": {"base_model": "lora"},
            "lora_rank": 2,
        },
        "kv_cache": False,
        "stop_gradient_delta": False,
    },
    # Rewards after training.
    "verify-grpo": {
        **_VERIFY,
        "max_steps": 2,
        "grpo": {"max_steps": 3, "group_size": 3, "inner_epochs": 2, "entropy_weight": 0.01},
    },
    # The encoder alone after a warm start, then rewards that hold the decoder close to what it was.
    "verify-encoder": {
        **_VERIFY,
        "warm_start": {"max_steps": 2, "learning_rate": 1e-2},
        "encoder_alone": {"max_steps": 3, "learning_rate": 1e-2},
        "through_draws": False,
        "trainable_components": {"decoder": {"base_model": True}, "encoder": {"base_model": "lora"}, "lora_rank": 2},
        "grpo": {"max_steps": 3, "activations": 4, "group_size": 3, "inner_epochs": 2, "kl_weight": 0.1},
    },
}


def _has_lora(config: LensConfig) -> bool:
    parts = config.trainable_components
    return "lora" in (parts.decoder.base_model, parts.encoder.base_model)


NO_EFFECT = (
    NoEffect(
        (
            "data.*",
            *(f"activation_dumper.{name}" for name in ("*_samples", "seq_len", "position")),
            *(f"activation_dumper.{name}" for name in ("min_position", "batch_size", "dtype", "save_every")),
        ),
        lambda c: c.activation_dumper.source is not None,
        "the activations of activation_dumper.source are taken as they are; leave out that to dump others, or this",
    ),
    NoEffect(
        "activation_dumper.test_samples",
        lambda c: not c.data.test_fraction,
        "no texts are kept for the test; set data.test_fraction above 0, or leave it out",
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
        "model_dtype",
        lambda c: c.model_name is None or c.trainable_components.has_copy,
        "it is the type of a named model that stays frozen; a model that is trained has float32; leave it out",
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
        "encoder_alone.*",
        lambda c: not c.encoder_alone.max_steps,
        "there is no stage that trains the encoder alone; set encoder_alone.max_steps, or leave it out",
    ),
    NoEffect(
        ("max_steps", "epochs", "kl_base_weight", "lm_base_weight", "entropy_weight", "mse_weight"),
        lambda c: not c.through_draws,
        "the stage that it is for is left out by through_draws=false; leave out that or this",
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
        "trainable_components.lora_*",
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
    only_for_records(lambda c: c.data.path is None or c.data.is_text),
)
