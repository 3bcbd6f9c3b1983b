"""Which checkpoints are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from samestep.core.errors import UserError

MODES = ("min", "max")


class Candidate(Protocol):
    """What retention needs to know of a checkpoint."""

    @property
    def step(self) -> int:
        """When it was saved."""

    @property
    def metric(self) -> float | None:
        """The metric by which checkpoints are compared."""

    @property
    def metric_name(self) -> str:
        """The name of the metric; empty if it is not known."""

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
    """This many of those with the best metric."""
    keep_every: int = 0
    """All at multiples of this many steps; 0 turns this rule off."""
    mode: str = "min"
    """Whether the smallest metric is the best ("min") or the largest ("max")."""
    metric: str = ""
    """The name of the metric that is compared; checkpoints with another metric are not compared. Empty: any."""

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise UserError(
                f"keep_last is {self.keep_last}, but at least 1 checkpoint must stay; set keep_last=1 or more"
            )
        if self.keep_best < 0 or self.keep_every < 0:
            raise UserError("keep_best and keep_every cannot be negative; set them to 0 to turn the rule off")
        if self.mode not in MODES:
            raise UserError(f"the mode of the best checkpoint is {self.mode!r}; choose one of {', '.join(MODES)}")

    def ranked(self, checkpoints: Sequence[C]) -> list[C]:
        """Those that have the metric, the best first; of equal ones the later first."""
        sign = 1 if self.mode == "min" else -1
        comparable = [c for c in checkpoints if not self.metric or c.metric_name in ("", self.metric)]
        scored = [(sign * c.metric, -c.step, c) for c in comparable if c.metric is not None]
        return [c for _, _, c in sorted(scored, key=lambda row: row[:2])]

    def to_delete(self, checkpoints: Sequence[C]) -> list[C]:
        """Those to remove. A damaged one is not counted, and is removed once there is a newer good one."""
        good = sorted((c for c in checkpoints if c.damage is None), key=lambda c: c.step)
        if not good:
            return []
        kept = {c.step for c in good[-self.keep_last :]}
        kept |= {c.step for c in self.ranked(good)[: self.keep_best]}
        if self.keep_every:
            kept |= {c.step for c in good if c.step % self.keep_every == 0}
        damaged = [c for c in checkpoints if c.damage is not None and c.step < good[-1].step]
        return [c for c in good if c.step not in kept] + damaged
