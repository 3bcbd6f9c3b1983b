"""`batch_size=auto`: the most rows of a micro-batch that fit in memory, tried before a stage's first step.

One step of the task is done, with one row on each rank: the longest that is found. In it the updates of the learners
make no update, but try more and more copies of what they are given (see train/learner/size_trial.py). What the step
changes is put back, so the run is that of a batch_size given by hand. The number is fixed for all later launches.
"""

import time
from dataclasses import replace
from typing import Any

from samestep.core.errors import OutOfMemory, UserError
from samestep.train.learner.size_trial import SizeTrial, sizes_of
from samestep.train.record.config import AUTO, UNMEASURED_ROWS
from samestep.train.record.first_launch import FirstLaunch
from samestep.train.record.fixed_values import BATCH_SIZE
from samestep.train.session.context import ReadyStage, SessionContext
from samestep.train.session.dry_run import dry_run
from samestep.world.memory import is_out_of_memory, memory_of


class StageBatchSize:
    """That of one stage in one launch."""

    def __init__(self, context: SessionContext, stage: str) -> None:
        self._context, self._stage = context, stage
        self._is_open = False
        self.note = ""
        """How `auto` became a number; empty where it is not to be measured, or not yet."""

    def known(self, config: Any) -> Any:
        """The settings of the stage with a number as batch_size: what its first launch found; or else what earlier
        stages have, which a stage that trains measures once it is built. Collective."""
        if config.batch_size != AUTO:
            return config
        world = self._context.world
        by_stage = FirstLaunch(world, self._context.rundir, self._stage).of_all_stages()
        if own := by_stage.get(self._stage, {}).get(BATCH_SIZE):
            self.note = "as measured at the first launch"
            return replace(config, batch_size=own)
        if config.distributed.strategy == "fsdp" and world.control is not None:
            raise UserError(
                "batch_size=auto lets each device try by itself what fits in its memory, which it cannot with a part "
                "of the network; give batch_size a number (half of it is tried where it does not fit), or use "
                "distributed.strategy=ddp"
            )
        self._is_open = True
        found = [fixed[BATCH_SIZE] for fixed in by_stage.values() if BATCH_SIZE in fixed]
        return replace(config, batch_size=min(found, default=UNMEASURED_ROWS))

    def measured(self, ready: ReadyStage) -> Any:
        """The settings of the stage that is built, whose feeds are cut by the number that they have now: the most rows
        that fit, if that is still to be measured, which is then fixed. A stage that does not train keeps the number
        that it has. Collective."""
        bench, began = ready.bench, time.monotonic()
        if not self._is_open or bench.known_plan is None or not bench.learners:
            return bench.config
        with self._context.screen.doing(f"stage {self._stage!r}: trying how many rows fit in memory"):
            rows, note = _largest(ready)
        rows = bench.first_launch.fix(BATCH_SIZE, lambda: rows)
        seconds = time.monotonic() - began
        bench.stage_plan.batch_size_note = note or f"measured in {seconds:.1f} s"
        self._context.events.event("batch_size", stage=self._stage, rows=rows, seconds=round(seconds, 3))
        bench.config = bench.feeds.config = replace(bench.config, batch_size=rows)
        for feed in bench.feeds.made:
            feed.cut_into(rows)
        return bench.config


def _largest(ready: ReadyStage) -> tuple[int, str]:
    """The rows of the largest micro-batch, and why it was not measured; empty where it was."""
    bench, world = ready.bench, ready.bench.world
    assert bench.known_plan is not None
    together = max(learner.rows_together for learner in bench.learners)
    groups = -(-min(bench.stage_plan.global_batch, bench.known_plan.samples) // together)
    share = -(-groups // world.dp_size) * together
    if any(learner.needs_whole_share for learner in bench.learners):
        return share, "all at once, as its batch norms need it"
    unmeasured = max(size for size in sizes_of(share, together) if size <= max(UNMEASURED_ROWS, together))
    world.barrier()  # each rank sees the memory that all of them have left
    memory = memory_of(world)
    if not all(world.gather(memory is not None)):
        return unmeasured, "not measured, since this system does not tell how much memory is free"
    assert memory is not None
    trial = SizeTrial(world, memory, share, together, sum(learner.memory_to_come for learner in bench.learners))
    _try_step(ready, trial)
    return (trial.rows, "") if trial.rows else (unmeasured, "not measured, since the first step makes no update")


def _try_step(ready: ReadyStage, trial: SizeTrial) -> None:
    """One step of the task, whose updates try sizes."""
    bench, feeds = ready.bench, ready.bench.feeds
    with dry_run(ready) as stack:
        made, evaluations = list(feeds.made), list(feeds.evaluations)
        for feed in made:
            stack.enter_context(feed.cut() if feed in evaluations else feed.one_row())
        stack.callback(setattr, feeds, "made", made)  # without those that the step itself makes
        stack.callback(setattr, feeds, "evaluations", evaluations)
        for learner in bench.learners:
            learner.size_trial = trial
            stack.callback(setattr, learner, "size_trial", None)
        try:
            ready.task.step(ready.loop.progress.tick())
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemory(f"out of memory with one row at a time ({type(error).__name__}: {error})") from error
            raise
    trial.memory.give_back()
