"""Named sets of values."""

from typing import Any

# An epoch of 11 pairs ends in a step with one, which most ranks have no row of.
_BOTH_VERIFY: dict[str, Any] = {
    "data": {"limit": 14, "validation_fraction": 0.2},
    "distributed": {"dtype": "float64"},
    "global_batch_size": 5,
    "batch_size": 2,
    "max_steps": 4,
    "validate_every": 2,
    "learning_rate": 3e-3,
}
_TEXT_VERIFY: dict[str, Any] = {
    **_BOTH_VERIFY,
    "family": "text",
    "model": {
        "text": {
            "d_model": 16,
            "n_layers": 1,
            "n_heads": 2,
            "mlp_hidden_size": 32,
            "max_sequence_length": 256,
            "init_std": 0.1,
        }
    },
    "objective": {"sft_coef": 0.1, "label_smoothing": 0.1},
}
_VERIFY: dict[str, Any] = {
    **_BOTH_VERIFY,
    "family": "protein",
    "model": {"protein": {"hidden": 16, "encoder_layers": 1, "decoder_layers": 2, "neighbours": 6}},
    "objective": {"sft_coef": 0.1},
}
PRESETS: dict[str, dict[str, Any]] = {
    # A small network learns which letters fit helices and strands, in seconds on 2 CPU processes.
    "tiny": {
        "family": "protein",
        "model": {"protein": {"hidden": 32, "encoder_layers": 1, "decoder_layers": 1, "neighbours": 12}},
        "data": {"split_by": "structure", "validation_fraction": 0.2},
        "global_batch_size": 16,
        "batch_size": 8,
        "epochs": 10,
        "learning_rate": 3e-3,
        "weight_decay": 0.0,
    },
    # The published network: --base_model_name v_48_020 --base_model_dir FOLDER --train_data FILE. None of its values
    # sets global_batch_size: --batch_size is for each process, as users of such scripts expect. bf16 gains nothing, the
    # network is small; TF32 would move the first loss of a compiled network away from ln 2.
    "proteinmpnn": {
        "family": "protein",
        "model": {"name": "v_48_020"},
        "distributed": {"mixed_precision": "none"},
        "batch_size": 4,
        "epochs": 10,
        "learning_rate": 1e-5,
        "schedule": "constant",
        "weight_decay": 0.0,
    },
    # A small language model learns to prefer text without typing errors, in a minute on 2 CPU processes.
    "text-tiny": {
        "family": "text",
        "model": {
            "text": {
                "d_model": 64,
                "n_layers": 2,
                "n_heads": 4,
                "mlp_hidden_size": 192,
                "max_sequence_length": 256,
                "init_std": 0.04,
            }
        },
        "objective": {"sft_coef": 0.1},
        "global_batch_size": 32,
        "batch_size": 16,
        "epochs": 6,
        "learning_rate": 3e-3,
        "weight_decay": 0.0,
    },
    # Language models: --base_model_name FOLDER --train_data FILE.
    "text": {
        "family": "text",
        "model": {"lora_rank": 16},
        "reference": "live",
        "batch_size": 4,
        "learning_rate": 1e-5,
        "warmup_ratio": 0.1,
        "schedule": "linear",
        "weight_decay": 0.0,
    },
    # Milliseconds a step in float64.
    "verify": _VERIFY,
    "verify-live": {
        **_VERIFY,
        "model": {"protein": {"hidden": 16, "encoder_layers": 1, "decoder_layers": 1, "neighbours": 6}},
        "reference": "live",
        "objective": {"diversity_lambda": 0.1, "loss_type": "hinge"},
    },
    "verify-text": _TEXT_VERIFY,
    "verify-text-live": {
        **_TEXT_VERIFY,
        "reference": "live",
        "bucketed": False,
        "objective": {"loss_type": "ipo", "length_normalised": True},
    },
}
"""Named sets of values."""
