"""Which checkpoints stay, as data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from samestep.core.errors import UserError

MODES = ("min", "max")


class Candidate(Protocol):
    """What retention looks at in a checkpoint."""

    @property
    def step(self) -> int:
        """When it was saved."""

    @property
    def figure(self) -> float | None:
        """By what it is compared with others."""

    @property
    def metric_name(self) -> str:
        """What the figure is of; empty where nobody said."""

    @property
    def damage(self) -> str | None:
        """What is wrong with it, if anything."""


C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True)
class Retention:
    """How many checkpoints are kept; the newest good one always is."""

    keep_last: int = 2
    """This many of the newest."""
    keep_best: int = 1
    """This many of those with the best figure."""
    keep_every: int = 0
    """All at multiples of this many steps; 0 keeps none for that reason."""
    mode: str = "min"
    """Whether the smallest figure is the best ("min") or the largest ("max")."""
    figure: str = ""
    """The figure that is compared; those of checkpoints that went by another one do not count. Empty: any."""

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise UserError(
                f"keep_last is {self.keep_last}, but at least 1 checkpoint must stay; set keep_last=1 or more"
            )
        if self.keep_best < 0 or self.keep_every < 0:
            raise UserError("keep_best and keep_every cannot be negative; set them to 0 to keep none for that reason")
        if self.mode not in MODES:
            raise UserError(f"the mode of the best checkpoint is {self.mode!r}; choose one of {', '.join(MODES)}")

    def ranked(self, checkpoints: Sequence[C]) -> list[C]:
        """Those that have a figure, the best first and of equals the later."""
        sign = 1 if self.mode == "min" else -1
        comparable = [c for c in checkpoints if not self.figure or c.metric_name in ("", self.figure)]
        scored = [(sign * c.figure, -c.step, c) for c in comparable if c.figure is not None]
        return [c for _, _, c in sorted(scored, key=lambda row: row[:2])]

    def to_delete(self, checkpoints: Sequence[C]) -> list[C]:
        """Those to remove. DamageError ones count for nothing, and go once there is a newer good one."""
        good = sorted((c for c in checkpoints if c.damage is None), key=lambda c: c.step)
        if not good:
            return []
        kept = {c.step for c in good[-self.keep_last :]}
        kept |= {c.step for c in self.ranked(good)[: self.keep_best]}
        if self.keep_every:
            kept |= {c.step for c in good if c.step % self.keep_every == 0}
        broken = [c for c in checkpoints if c.damage is not None and c.step < good[-1].step]
        return [c for c in good if c.step not in kept] + broken
