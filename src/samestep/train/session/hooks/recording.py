"""The hooks that record evidence for `samestep verify`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from samestep.checkpoint.state import Stateful
from samestep.train.learner.evidence import EvidenceRecorder
from samestep.train.logging.metrics import Metrics, MetricValues
from samestep.train.record.progress import Tick


@dataclass(frozen=True)
class RecordReturned:
    """A hook that records that the task's step has returned. It distinguishes a rank that left a step early from those
    that wait in it; it must be the first hook."""

    recorder: EvidenceRecorder

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """The task's step has returned."""
        self.recorder.returned(tick.step)


@dataclass(frozen=True)
class RecordStep:
    """A hook that writes the last line of every step of the loop; it must come before the save."""

    recorder: EvidenceRecorder
    state: Mapping[str, Stateful]
    validation: Callable[[], MetricValues]
    """The validation metrics of this step, on this rank."""

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """The step is over."""
        self.recorder.step(tick.step, self.state, self.validation())
