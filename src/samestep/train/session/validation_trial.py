"""One batch of validation before the first step of a stage: mistakes in it should not wait for the end of an epoch.

Its metrics are dropped, and what it changed is put back: random generators, buffers, the task's own attributes and
state. Nothing is recorded, compiled or logged. It runs twice, the second time with a filler row, which must not change
a metric. If one batch is not enough, such as for a metric that needs rows of two classes, all batches are tried.
"""

import logging
import math
from functools import partial

from samestep.train.api.recipe import no_validation
from samestep.train.logging.metrics import MetricValues
from samestep.train.record.progress import Tick
from samestep.train.session.context import ReadyStage
from samestep.train.session.dry_run import dry_run
from samestep.train.session.hooks.validation import check_validated

logger = logging.getLogger(__name__)
_ROUNDING = 1e-6
"""By how much of its size a metric may differ without being another one."""


def try_validation(ready: ReadyStage, tick: Tick) -> None:
    """Refuse a stage whose validation fails, or lacks what its settings follow. `tick`: that of the first one."""
    if ready.stage.validate is no_validation:
        check_validated(ready.stage, {}, ready.bench.config)
        return
    attempt = partial(_attempt, ready, tick)
    found, failure = attempt()
    if failure is None:
        _look_for_counted_fillers(ready, found, attempt)
        return
    _, failure = attempt(cut=False)
    if failure is not None:
        raise failure


def _attempt(
    ready: ReadyStage, tick: Tick, *, cut: bool = True, filler: bool = False
) -> tuple[MetricValues, Exception | None]:
    """The metrics of the first batch, or of all, whose traces are gone afterwards; or the failure of any rank."""
    bench = ready.bench

    def validate() -> MetricValues:
        found = ready.stage.validate(ready.task, tick)
        check_validated(ready.stage, found, bench.config)
        return found

    with bench.world.activity.doing("validate"), dry_run(ready) as stack:
        for feed in bench.feeds.made if cut else ():
            stack.enter_context(feed.cut(filler=filler))
        found, failure = bench.world.try_together("validation", validate)
    return found or {}, failure


def _look_for_counted_fillers(ready: ReadyStage, found: MetricValues, attempt: partial) -> None:
    """Warn of metrics that a filler row changes. One that is another every time, such as a duration, is none."""
    with_filler, failure = attempt(filler=True)
    changed = set(ready.bench.world.share(sorted(_differing(found, with_filler))))  # a duration differs by rank too
    if failure is None and changed:
        again, failure = attempt()
        changed -= _differing(found, again)
    if not ready.bench.world.is_main or not (changed or failure):
        return
    what = f"counts filler rows in {sorted(changed)[0]!r}" if failure is None else f"fails on a filler row ({failure})"
    logger.warning(
        "the validation of stage %r %s. They fill up micro-batches where ranks have unequal shares, so it depends on "
        'the number of ranks; leave out the rows where batch["live"] is false',
        ready.stage.name,
        what,
    )


def _differing(one: MetricValues, other: MetricValues) -> set[str]:
    """The names of metrics with another value."""
    return {
        name
        for name in one.keys() & other.keys()
        if not math.isclose(one[name], other[name], rel_tol=_ROUNDING, abs_tol=1e-12)
        and not (math.isnan(one[name]) and math.isnan(other[name]))
    }
