"""At the end of a stage: take back the state of its best checkpoint."""

from samestep.core.errors import RunFailed
from samestep.train.logging.console import Screen, format_metrics
from samestep.train.session.context import ReadyStage


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
        ready.store.load(best, ready.state)
        ready.progress.load_state_dict(at_end)
    shown = format_metrics({metric: best.metric})
    screen.print(f"stage {ready.stage.name!r} ends with the state of step {best.step:,}, the best by {shown}")
