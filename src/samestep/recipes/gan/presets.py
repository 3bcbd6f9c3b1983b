"""Named sets of values."""

from typing import Any

_SMALL_NETWORK = {
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 2,
    "mlp_hidden_size": 32,
    "max_sequence_length": 512,
    "init_std": 0.1,
}
_VERIFY_NETWORK = {**_SMALL_NETWORK, "n_layers": 1}
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
    "generator": {"network": {**_SMALL_NETWORK, "d_model": 64, "n_heads": 4, "mlp_hidden_size": 192}},
    "judge": {"network": {**_SMALL_NETWORK, "d_model": 64, "n_heads": 4, "mlp_hidden_size": 192}},
    "judging": {"max_tokens": 48},
    "writing": {"max_new_tokens": 48},
    "batch_size": 8,
    "epochs": 5,
    "learning_rate": 1e-3,
}
_SMALL: dict[str, Any] = {
    "writing": {"max_new_tokens": 256},
    "batch_size": 4,
    "epochs": 20,
    "learning_rate": 1e-5,
    "warmup_ratio": 0.05,
    "weight_decay": 0.0,
}
_TINY_NETWORK = {
    "d_model": 64,
    "n_layers": 2,
    "n_heads": 4,
    "mlp_hidden_size": 192,
    "max_sequence_length": 320,
    "init_std": 0.04,
}
# Each side waits for the other: the generator until the judge has something to teach, the judge while it wins.
_TINY: dict[str, Any] = {
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
    "judge_pauses_above": 0.75,
    "generator_pauses_below": 0.6,
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
}
"""Named sets of values."""
