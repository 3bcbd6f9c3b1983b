"""Named sets of values."""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # A minute or two on two CPU cores. Measured with Python 3.11's text: 3.04 bits per byte, where single bytes have
    # 4.72 and bigrams 3.44 (benchmarks/ngram.py); nine epochs reach 2.93.
    # At this size, rotary wavelengths suited to short rows and larger fresh weights are worth most.
    "tiny": {
        "data": {"sequence_length": 64},
        "model": {
            "d_model": 96,
            "n_layers": 3,
            "n_heads": 3,
            "mlp_hidden_size": 256,
            "rope_theta": 10000.0,
            "max_sequence_length": 256,
            "init_std": 0.06,
        },
        # A network this small is surest of blanks: keeping its surest drafts first would write nothing else.
        "sampling": {"length": 64, "steps": 64, "temperature": 0.7, "remasking": "random"},
        "global_batch_size": 16,
        "batch_size": 16,
        "epochs": 7,
        "validate_every": 550,
        "learning_rate": 3e-3,
        "warmup_ratio": 0.05,
        "weight_decay": 0.1,
    },
    # 41 million parameters for one or more GPUs and a text of your own.
    "small": {
        "data": {"sequence_length": 512},
        "model": {
            "d_model": 512,
            "n_layers": 12,
            "n_heads": 8,
            "mlp_hidden_size": 1536,
            "embedding_size": 320,
            "max_sequence_length": 2048,
        },
        "objective": {"cut_rows": 0.01},
        "sampling": {"length": 256, "steps": 128, "block_length": 32},
        "distributed": {"mixed_precision": "bf16"},
        "global_batch_size": 128,
        "batch_size": 64,
        "max_steps": 4000,
        "validate_every": 500,
        "learning_rate": 6e-4,
        "warmup_ratio": 0.05,
        "final_lr_ratio": 0.1,
        "compile": True,
    },
    # Milliseconds a step in float64. Both regions end in a partial row, an epoch in a smaller batch, and some rows are
    # cut: whatever a wrong weight could spoil, it spoils here.
    "verify": {
        "data": {"sequence_length": 16, "limit": 1610},
        "model": {
            "d_model": 16,
            "n_layers": 2,
            "n_heads": 2,
            "mlp_hidden_size": 32,
            "max_sequence_length": 64,
            "init_std": 0.1,
        },
        "objective": {"cut_rows": 0.1, "validation_times": 2},
        "sampling": {"length": 16, "steps": 4, "block_length": 8},
        "distributed": {"dtype": "float64"},
        "global_batch_size": 11,
        "batch_size": 4,
        "epochs": 2,
        "learning_rate": 1e-2,
        "warmup_ratio": 0.1,
    },
}
"""Named sets of values."""
