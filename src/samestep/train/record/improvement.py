"""Whether validations still improve: decides early stopping, and when `schedule=plateau` lowers the learning rate.

All ranks hold the same validation metrics, so all of them decide alike without a message. The counts are part of the
checkpoint. Only regular validations count, not the extra one after a stage's last step: so a run that is extended
later counts as one that was longer from the start.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.train.record.config import Config


@dataclass(frozen=True)
class Patience:
    """How many validations without improvement have which effect."""

    metric: str = ""
    """The stage's `best` metric; empty if it has none."""
    mode: str = "min"
    min_improvement: float = 0.0
    early_stopping: int = 0
    """End the stage after so many; 0: never."""
    plateau: int = 0
    """Lower the learning rate after so many; 0: never."""
    factor: float = 1.0
    """By how much."""
    floor: float = 0.0
    """The least factor of the planned rate."""

    @classmethod
    def of(cls, config: Config, best: tuple[str, str] | None) -> "Patience":
        """What a configuration asks for, for a stage with this `best`."""
        plateau = config.plateau_patience if config.schedule == "plateau" else 0
        return cls(
            *(best or ("", "min")),
            config.min_improvement,
            config.early_stopping,
            plateau,
            config.plateau_factor,
            config.final_lr_ratio,
        )


@dataclass
class Improvement:
    """Counts the validations since the last improvement; checkpoint state."""

    patience: Patience = field(default_factory=Patience)
    best: float | None = None
    """The last value that counted as an improvement."""
    waited: int = 0
    """Validations since then."""
    waited_at_rate: int = 0
    """Validations since then, or since the learning rate fell."""
    rate_factor: float = 1.0
    """What the planned learning rate is multiplied by."""

    def add(self, value: float) -> bool:
        """Count one validation; returns whether the learning rate falls now."""
        if self._is_better(value):
            self.best, self.waited, self.waited_at_rate = value, 0, 0
            return False
        self.waited, self.waited_at_rate = self.waited + 1, self.waited_at_rate + 1
        lower = max(self.patience.floor, self.rate_factor * self.patience.factor)
        if not 0 < self.patience.plateau <= self.waited_at_rate or lower >= self.rate_factor:
            return False
        self.rate_factor, self.waited_at_rate = lower, 0
        return True

    def _is_better(self, value: float) -> bool:
        if self.best is None or not math.isfinite(value):
            return math.isfinite(value)
        gain = self.best - value if self.patience.mode == "min" else value - self.best
        return gain > self.patience.min_improvement

    @property
    def stops(self) -> bool:
        """Whether the stage ends here."""
        return 0 < self.patience.early_stopping <= self.waited

    def describe(self) -> str:
        """`val/loss has not improved for 3 validations`."""
        return f"{self.patience.metric} has not improved for {self.waited} validation{'s' * (self.waited != 1)}"

    def state_dict(self) -> dict[str, Json]:
        return {
            "best": self.best,
            "waited": self.waited,
            "waited_at_rate": self.waited_at_rate,
            "rate_factor": self.rate_factor,
        }

    def load_state_dict(self, state: dict[str, Json]) -> None:
        """Continue from saved counts."""
        self.best, self.waited = state["best"], state["waited"]
        self.waited_at_rate, self.rate_factor = state["waited_at_rate"], state["rate_factor"]


def follows_validation(config: Any) -> list[str]:
    """The settings that need a validation metric to follow, as far as they are on."""
    settings = {
        "early_stopping": config.early_stopping > 0,
        "schedule=plateau": config.schedule == "plateau",
        "best_at_end=true": config.best_at_end,
    }
    return [name for name, is_asked in settings.items() if is_asked]


def check_improvement_settings(config: Any, stage: str, best: tuple[str, str] | None, trains: bool) -> None:
    """Refuse settings that make no sense, or that need a `best` metric where a stage that trains has none."""
    if config.best_at_end and config.checkpoint.keep_best < 1:
        raise UserError("best_at_end=true needs the best checkpoint; set checkpoint.keep_best=1 or more")
    asked = follows_validation(config)
    if asked and trains and best is None:
        raise UserError(
            f"{asked[0]} needs a validation metric to follow, but stage {stage!r} names none; give the stage "
            'best=("val/loss", "min"), or leave the setting out'
        )
