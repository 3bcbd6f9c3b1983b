"""At the end of a stage: take back the state of its best checkpoint."""

from collections.abc import Sequence
from typing import Any

from samestep.core.errors import RunFailed
from samestep.core.records import Json
from samestep.train.artifacts.array_writer import ArrayArtifact
from samestep.train.logging.console import Screen, format_metrics
from samestep.train.session.context import ReadyStage


class _Kept:
    """In place of an array artifact, which is complete by now: what it was at the best step does not matter."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignored."""

    def rank_state(self) -> Json:
        """Nothing."""

    def load_rank_state(self, states: Sequence[Json]) -> None:
        """Ignored."""


def take_back_best(ready: ReadyStage, screen: Screen) -> None:
    """Load the best checkpoint into the task, its learners and hooks; the progress stays that of the end. Collective.

    The checkpoint of the last step is left as it is, so a stage that is extended later goes on from there.
    """
    assert ready.stage.best is not None
    metric, _ = ready.stage.best
    best = ready.store.best()
    if best is None or best.metric is None:
        raise RunFailed(
            f"best_at_end=true, but no intact checkpoint of stage {ready.stage.name!r} has the metric {metric!r}; "
            "resume with best_at_end=false to keep the state of the last step"
        )
    if best.step != ready.progress.step:
        at_end = ready.progress.state_dict()
        ready.store.load(
            best, {name: _Kept() if isinstance(part, ArrayArtifact) else part for name, part in ready.state.items()}
        )
        ready.progress.load_state_dict(at_end)
    shown = format_metrics({metric: best.metric})
    screen.print(f"stage {ready.stage.name!r} ends with the state of step {best.step:,}, the best by {shown}")
