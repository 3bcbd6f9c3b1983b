"""The numbers of a run: batch, steps, and the learning rate of each step. Made at the first launch, then fixed."""

import logging
import math
from dataclasses import asdict, dataclass, replace

from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.train.record.config import AUTO, Config

logger = logging.getLogger(__name__)
KINDS = ("constant", "linear", "cosine", "wsd")
"""The shapes of a schedule."""


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a function of the step: warm-up, then a decay from the peak to `floor` times the peak."""

    peak: float
    """The largest rate."""
    steps: int = 0
    """0: all steps of the stage, where a learner is given this as its rate."""
    warmup: int = 0
    """Steps of linear warm-up."""
    kind: str = "constant"
    """constant, linear, cosine or wsd (warm-up, stable, decay)."""
    floor: float = 0.0
    """The rate at the end as a fraction of the peak."""
    decay: int = 0
    """Steps of the final decay (wsd only)."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"the kind of a schedule is {', '.join(KINDS)}, not {self.kind!r}")

    def __call__(self, step: int) -> float:
        """The rate of update number `step`, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        after = self.warmup
        if self.kind == "wsd":
            after = max(self.warmup, self.steps - self.decay)
        done = min(1.0, max(0.0, (step - after) / max(1, self.steps - after)))
        return self.peak * (self.floor + (1 - self.floor) * self._decay_factor(done))

    def _decay_factor(self, done: float) -> float:
        """From 1 at the start of the decay to 0 at its end."""
        if self.kind == "constant":
            return 1.0
        if self.kind == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        return 1.0 - done  # linear, and wsd's decay


@dataclass(frozen=True)
class Plan:
    """The numbers that no resume, at whatever world size, may change; the global batch is among the settings."""

    samples: int
    steps_per_epoch: int
    steps: int
    learning_rate: float
    warmup_steps: int

    @classmethod
    def make(cls, config: Config, dp_size: int, samples: int) -> "Plan":
        """Compute the numbers from the configuration, the number of data-parallel ranks and the data."""
        _check(config, samples)
        batch = global_batch(config, dp_size)
        if batch > samples:
            logger.warning(
                "the global batch is %d rows, but there are only %d to train on: every step takes all of them, once; "
                "give more data, or set global_batch_size to %d or less",
                *(batch, samples, samples),
            )
        per_epoch = math.ceil(samples / batch)
        steps = _steps(config, per_epoch)
        ratio = min(batch, samples) / config.base_batch_size
        scale = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[config.lr_scaling]
        return cls(samples, per_epoch, steps, config.learning_rate * scale, _warmup(config, steps))

    def with_length_of(self, config: Config) -> "Plan":
        """The plan with the steps that the configuration asks for now: a run may be extended. All else stays."""
        return replace(self, steps=_steps(config, self.steps_per_epoch))

    def schedule(self, config: Config) -> Schedule:
        """The learning rate of every step; that of a plateau is also multiplied by a factor (see improvement.py)."""
        decay = round(config.decay_ratio * self.steps)
        kind = "constant" if config.schedule == "plateau" else config.schedule
        return Schedule(self.learning_rate, self.steps, self.warmup_steps, kind, config.final_lr_ratio, decay)

    def to_json(self) -> Json:
        """For the run directory."""
        return asdict(self)


def global_batch(config: Config, dp_size: int) -> int:
    """Rows per step over all data-parallel ranks."""
    if config.global_batch_size is not None:
        return config.global_batch_size
    if config.batch_size == AUTO:
        raise UserError(
            "batch_size=auto cuts a global batch into micro-batches that fit in memory, and no global batch is given; "
            "add global_batch_size=N, the rows of a step over all devices, or give batch_size a number"
        )
    return config.batch_size * config.accumulation * dp_size


def _steps(config: Config, steps_per_epoch: int) -> int:
    return config.max_steps if config.max_steps is not None else config.epochs * steps_per_epoch


def _check(config: Config, samples: int) -> None:
    if samples < 1:
        raise UserError("the training data is empty: there is no sample to train on")


def _warmup(config: Config, steps: int) -> int:
    wanted = config.warmup_steps if config.warmup_steps is not None else round(config.warmup_ratio * steps)
    if wanted > steps:
        logger.warning("warm-up of %d steps is longer than the run; clamped to its %d steps", wanted, steps)
    return min(wanted, steps)
