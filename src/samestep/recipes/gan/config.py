"""Every setting of the recipe beyond those that all recipes share."""

from dataclasses import dataclass, field

from samestep import Config, GenerationConfig, UserError, free
from samestep.core.config.bounds import Count, CountOrZero, NotNegative, Share
from samestep.core.config.checked import CheckedConfig
from samestep.recipes.gan.data import DataConfig
from samestep.recipes.gan.evaluation import BenchmarkConfig
from samestep.recipes.gan.judging import JudgeConfig
from samestep.recipes.gan.objectives import Objective
from samestep.recipes.gan.players import PlayerConfig
from samestep.train.record.config import Checkpoints


@dataclass(frozen=True)
class ReplayConfig(CheckedConfig):
    """Opponents from earlier steps, so that neither side forgets what it could do."""

    keep: CountOrZero = 0
    """Earlier states of each side that are kept, in memory and in checkpoints; 0: none."""
    every: Count = 100
    """Steps after which both sides are kept as they are."""
    share: Share = 0.5
    """How often an earlier opponent plays: an earlier generator in the judge's updates before the last of a step (see
    judge_steps), an earlier judge where the generator's rewards come from."""


@dataclass(frozen=True)
class GanConfig(Config):
    """A generator of text against a judge."""

    preset: str = "tiny"
    """A named set of values."""
    data: DataConfig = field(default_factory=DataConfig)
    """Prompts, and what people wrote for them."""
    model_name: str | None = None
    """The model of both players, where they name none of their own: a folder, or org/name of the Hub."""
    generator: PlayerConfig = field(default_factory=PlayerConfig)
    """The model that writes."""
    judge: PlayerConfig = field(default_factory=PlayerConfig)
    """The model that tells what a person wrote from what the generator wrote."""
    writing: GenerationConfig = field(default_factory=GenerationConfig)
    """How the generator writes."""
    judging: JudgeConfig = field(default_factory=JudgeConfig)
    """How the judge tells texts apart."""
    objective: Objective = field(default_factory=Objective)
    """What the generator learns from."""
    judge_learning_rate: NotNegative | None = None
    """Peak learning rate of the judge; null: learning_rate."""
    judge_steps: Count = 1
    """Updates of the judge per step, each on texts of its own."""
    mle_epochs: CountOrZero = 0
    """Epochs in which the generator first learns the human texts themselves, in a stage of its own."""
    mle_learning_rate: NotNegative | None = None
    """Peak learning rate of that stage; null: learning_rate."""
    judge_pauses_above: Share = 1.0
    """The judge does not learn while its accuracy, a moving average over some ten rollouts, is above this."""
    generator_pauses_below: Share = 0.0
    """The generator does not learn while that is below this."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Opponents from earlier steps."""
    benchmark: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    """What both are measured on, as often as validate_every says."""
    rollouts_every: CountOrZero | None = free(None)
    """Steps after which some rollouts are written to rollouts.jsonl; 0: never, null: as often as metrics."""
    checkpoint: Checkpoints = field(default_factory=lambda: Checkpoints(every_steps=20))
    """When to save, and what to keep."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        if not self.generator_pauses_below < self.judge_pauses_above:
            raise UserError("Set 0 <= generator_pauses_below < judge_pauses_above <= 1.")
