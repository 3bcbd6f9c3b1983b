"""What a learner notes during the first step of a launch, for the checks after it (see hooks/first_step.py)."""

from collections.abc import Sequence

from torch import nn

from samestep.train.logging.metrics import Metric, Metrics


class FirstStepNotes:
    """Which parameters got no gradient in any update of the first step, and what these updates returned."""

    def __init__(self) -> None:
        self._step: int | None = None
        self.untrained: set[str] | None = None
        """Names of parameters; None before the first update."""
        self.metrics: list[Metric] = []

    def note_gradients(self, step: int, trained: Sequence[tuple[str, nn.Parameter]]) -> None:
        """Called before the optimizer's step."""
        if self._step is None:
            self._step = step
        if self._step == step and self.untrained != set():
            lacking = {name for name, parameter in trained if parameter.grad is None}
            self.untrained = lacking if self.untrained is None else self.untrained & lacking

    def noted(self, step: int, metrics: Metrics) -> Metrics:
        """What an update returns."""
        if self._step == step:
            self.metrics += metrics.values()
        return metrics
