"""The settings of the recipe that are its own, and the presets."""

from dataclasses import dataclass
from typing import Any

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

    def __post_init__(self) -> None:
        """Refuse what cannot be cut into rows."""
        if self.sequence_length < 1:
            raise UserError(f"Set data.sequence_length to 1 or more; it is {self.sequence_length}.")
        if not 0 < self.validation_fraction < 1:
            raise UserError(f"Set data.validation_fraction between 0 and 1; it is {self.validation_fraction}.")


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


REMASKING = ("low_confidence", "random")


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
    remasking: str = "low_confidence"
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
        if self.remasking not in REMASKING:
            raise UserError(f"Set remasking to one of {', '.join(REMASKING)}; it is {self.remasking}.")


PRESETS: dict[str, dict[str, Any]] = {}
