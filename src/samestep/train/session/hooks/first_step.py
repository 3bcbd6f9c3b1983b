"""What is checked once, after the first step of a launch by which every learner made an update.

Weights that belong to no term are refused. Named are parameters that got no gradient, and metrics of the task's own
whose rows were read without a look at which of them count. Where something was compiled, it says how long that took.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from samestep.data.feed import CountedTerms, Feed, MicroBatches
from samestep.train.learner.learner import Learner
from samestep.train.logging.compile_notice import CompileNotice
from samestep.train.logging.metrics import Metrics
from samestep.train.record.progress import Tick
from samestep.world.world import World

logger = logging.getLogger(__name__)
_UPDATES = (Learner.update.__code__, Learner.update_coupled.__code__)


@dataclass
class FirstStep:
    """A hook that checks once."""

    feeds: Sequence[Feed]
    produced: CountedTerms
    """Of the rows that the stage makes itself."""
    learners: Sequence[Learner]
    world: World
    compile_notice: CompileNotice
    _reads: "Reads" = field(default_factory=lambda: Reads())
    _is_done: bool = False

    def begin(self) -> None:
        """Before the first step of a launch."""
        self.compile_notice.begin_steps()
        for feed in self.feeds:
            feed.watch = self._reads.watched

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Check once."""
        if self._is_done:
            return
        self._is_done = all(learner.has_updated for learner in self.learners)
        self.compile_notice.end_step(tick.step + 1, is_last=self._is_done)
        if not self._is_done:
            return
        for feed in self.feeds:
            feed.watch = None
            feed.check_counted()
        self.produced.check()
        if self.world.is_main:
            self._say_untrained()
            self._say_counted_fillers(metrics)

    def _say_untrained(self) -> None:
        for learner in self.learners:
            names = sorted(learner.first_step.untrained or ())
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                logger.warning(
                    "learner %r: the parameter %r%s got no gradient in the first step, so it is not trained; use it in "
                    "a loss, or name it in the recipe's `unused`. On several ranks this is refused",
                    learner.name,
                    names[0],
                    more,
                )

    def _say_counted_fillers(self, metrics: Metrics) -> None:
        of_updates = {id(metric) for learner in self.learners for metric in learner.first_step.metrics}
        own = [name for name, metric in metrics.items() if id(metric) not in of_updates and not metric.same]
        if own and self._reads.reads_rows and not self._reads.tells_fillers:
            logger.warning(
                "the metric %r may count filler rows: the step read rows of its batches without looking at "
                'batch["live"], which is false for rows that only fill up a micro-batch where ranks have unequal '
                "shares; leave these out, or the metric depends on the number of ranks",
                own[0],
            )


class Reads:
    """What the recipe reads of its batches in a step, outside of updates, which leave filler rows out themselves."""

    def __init__(self) -> None:
        self.reads_rows = False
        self.tells_fillers = False
        """Whether it looked at which rows count."""

    def watched(self, micro_batches: MicroBatches) -> MicroBatches:
        """The same micro-batches; what is read of them is noted."""
        watched = _WatchedSteps(**vars(micro_batches))
        watched.batches = [_WatchedBatch(batch) for batch in micro_batches.batches]
        for part in (watched, *watched.batches):
            vars(part)["reads"] = self
        return watched

    def note(self, name: str) -> None:
        """A batch, or the micro-batches, were asked for `name`."""
        frame: Any = sys._getframe(2)
        module = frame.f_globals.get("__name__", "")
        if module.startswith("samestep.") and not module.startswith("samestep.recipes."):
            return
        while frame is not None:
            if frame.f_code in _UPDATES:
                return
            frame = frame.f_back
        if name in ("live", "spans", "is_filler"):
            self.tells_fillers = True
        elif name != "ids":
            self.reads_rows = True


class _WatchedBatch(dict[str, Any]):
    reads: Reads | None = None

    def __getitem__(self, name: str) -> Any:
        if self.reads is not None:
            self.reads.note(name)
        return super().__getitem__(name)


class _WatchedSteps(MicroBatches):
    reads: ClassVar[Reads | None] = None

    def __getattribute__(self, name: str) -> Any:
        if name in ("spans", "is_filler") and self.reads is not None:
            self.reads.note(name)
        return super().__getattribute__(name)
