"""The settings of the recipe that are its own, and the presets."""

from dataclasses import dataclass
from typing import Any, Literal

from samestep.core.errors import UserError


@dataclass(frozen=True)
class DataConfig:
    """What to learn from."""

    path: str | None = None
    """A local text or JSONL file; null is the English text that comes with Python (`pydoc_data.topics`)."""
    field: str = "text"
    """Where a line of a JSONL file holds its text."""
    sequence_length: int = 128
    """Tokens (bytes) in a row."""
    validation_fraction: float = 0.1
    """Share of the text, at its end, that is kept for validation."""
    limit: int | None = None
    """Use only so many tokens from the beginning of the text, for a quick trial; null is all of it."""

    def __post_init__(self) -> None:
        """Refuse what cannot be cut into rows."""
        if self.sequence_length < 1:
            raise UserError(f"Set data.sequence_length to 1 or more; it is {self.sequence_length}.")
        if not 0 < self.validation_fraction < 1:
            raise UserError(f"Set data.validation_fraction between 0 and 1; it is {self.validation_fraction}.")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"Set data.limit to 1 or more, or to null; it is {self.limit}.")


@dataclass(frozen=True)
class ObjectiveConfig:
    """How tokens are hidden, and how validation averages over it."""

    least: float = 1e-3
    """Smallest share of hidden tokens: a time t in (0, 1) hides a share of (1 - least) t + least."""
    antithetic: bool = True
    """Give rows 2k and 2k+1 of an epoch the times t and 1 - t, so that an epoch covers all times evenly."""
    cut_rows: float = 0.0
    """Share of training rows that are cut to a random length, as LLaDA does with 0.01."""
    validation_times: int = 8
    """Times, evenly spread, at which each validation row is measured; more is less noise and more work."""

    def __post_init__(self) -> None:
        """Refuse shares that are none."""
        if not 0 <= self.least < 1:
            raise UserError(f"Set objective.least to at least 0 and below 1; it is {self.least}.")
        if not 0 <= self.cut_rows <= 1:
            raise UserError(f"Set objective.cut_rows between 0 and 1; it is {self.cut_rows}.")
        if self.validation_times < 1:
            raise UserError(f"Set objective.validation_times to 1 or more; it is {self.validation_times}.")


@dataclass(frozen=True)
class SamplingConfig:
    """How text is written from a trained network."""

    length: int = 96
    """Tokens to write."""
    steps: int = 48
    """Forward passes in all; each reveals an equal share of the tokens."""
    block_length: int | None = None
    """Write from left to right in blocks of this many tokens; null is one block, all positions at once."""
    temperature: float = 0.7
    """0 takes the likeliest token, 1 draws from the network's own probabilities."""
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    """Which drafts are hidden again after a pass: low_confidence (keep the surest) or random."""

    def __post_init__(self) -> None:
        """Refuse what cannot be carried out, before a network is loaded."""
        block = self.length if self.block_length is None else self.block_length
        if self.length < 1:
            raise UserError(f"Set length to 1 or more; it is {self.length}.")
        if not 1 <= block <= self.length:
            raise UserError(f"Set block_length between 1 and length={self.length}, or to null; it is {block}.")
        if self.steps < -(-self.length // block):
            raise UserError(f"Set steps to {-(-self.length // block)} or more, one a block; it is {self.steps}.")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"Set temperature to 0 or more; it is {self.temperature}.")


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
