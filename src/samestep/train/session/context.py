"""What the stages of one session share, and a stage that is ready for its loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samestep.checkpoint.store import Store
from samestep.core.rundir import RunDir
from samestep.train.api.bench import Bench
from samestep.train.api.loop import Hook, Task
from samestep.train.api.recipe import Recipe, Stage
from samestep.train.learner.evidence import EvidenceRecorder
from samestep.train.logging.console import Screen
from samestep.train.logging.metrics import MetricAccumulator
from samestep.train.record.progress import Progress
from samestep.train.record.run_status import RunEvents
from samestep.train.record.stop import Stop
from samestep.world.seeding import RandomState
from samestep.world.world import World


@dataclass(frozen=True)
class SessionContext:
    """One launch of a recipe, once its run directory is open."""

    name: str
    recipe: Recipe
    config: Any
    world: World
    rundir: RunDir
    screen: Screen
    events: RunEvents
    stop: Stop
    is_disk_shared: bool
    """Whether all ranks see the run directory."""
    start_over: bool
    """Whether a stage that lost all its checkpoints may begin again."""
    code: Mapping[str, str] = field(default_factory=dict)
    """On rank 0, the hashes of the recipe's source files."""
    benches: list[Bench] = field(default_factory=list)
    """The benches of the stages that ran so far."""


@dataclass(frozen=True)
class LoopState:
    """What the runtime itself has in the checkpoints of a stage."""

    progress: Progress
    row_metrics: MetricAccumulator
    """Metrics since the last row."""
    epoch_metrics: MetricAccumulator
    """Metrics of this epoch."""
    random: RandomState

    @classmethod
    def new(cls, progress: Progress, world: World, seed: int) -> "LoopState":
        """That of a stage that begins."""
        return cls(progress, MetricAccumulator(world), MetricAccumulator(world), RandomState(world, seed))

    def parts(self) -> dict[str, Any]:
        """By their names in a checkpoint."""
        metrics = {"window": self.row_metrics, "epoch": self.epoch_metrics}
        return {"progress": self.progress, **metrics, "random": self.random}


@dataclass(frozen=True)
class ReadyStage:
    """A stage that is built and restored: what its loop and its hooks work on."""

    stage: Stage
    bench: Bench
    task: Task
    hooks: Sequence[Hook]
    """The stage's own."""
    store: Store
    loop: LoopState
    recipe_state: Mapping[str, Any]
    """What the recipe has in a checkpoint: the state of the task and of the stage's own hooks."""
    state: Mapping[str, Any]
    """Everything that a checkpoint holds: name to Stateful."""
    resumed: str
    """Where its state came from; empty for a fresh one."""
    code: str
    """A hash of the code that trained it so far; empty where that changed. On rank 0."""

    @property
    def recorder(self) -> EvidenceRecorder | None:
        """What records evidence, if that was asked for."""
        return self.bench.recorder
