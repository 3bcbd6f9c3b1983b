"""Named sets of values."""

from typing import Any

_TEXT_VERIFY: dict[str, Any] = {
    "family": "text",
    "data": {"limit": 40, "validation_fraction": 0.2},
    "model": {
        "text": {
            "d_model": 16,
            "n_layers": 2,
            "n_heads": 2,
            "mlp_hidden_size": 32,
            "max_sequence_length": 256,
            "init_std": 0.1,
        }
    },
    "objective": {"sft_coef": 0.1, "label_smoothing": 0.1},
    "distributed": {"dtype": "float64"},
    "global_batch_size": 7,
    "batch_size": 3,
    "max_steps": 4,
    "validate_every": 2,
    "learning_rate": 3e-3,
}
PRESETS: dict[str, dict[str, Any]] = {
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
    "verify-text": _TEXT_VERIFY,
    "verify-text-live": {
        **_TEXT_VERIFY,
        "reference": "live",
        "bucketed": False,
        "objective": {"loss_type": "ipo", "length_normalised": True},
    },
}
"""Named sets of values."""
