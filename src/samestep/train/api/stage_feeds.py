"""The feeds of one stage: each is made alike, and its data is compared with that of the first launch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from samestep.data.chosen_rows import ReadOptions
from samestep.data.datasets import FeedData
from samestep.data.feed import CountedTerms, Feed
from samestep.data.loading import RowWeights
from samestep.data.order import Order, Reordered
from samestep.train.api.data_check import FeedName, check_data
from samestep.train.learner.learner import Learner
from samestep.train.record.first_launch import StageInfo


@dataclass
class StageFeeds:
    """Makes them, in the order in which the stage asks for them."""

    stage: StageInfo
    unit: str
    learners: Sequence[Learner]
    """The learners that the stage has so far."""
    made: list[Feed] = field(default_factory=list)
    counted: CountedTerms = field(default_factory=CountedTerms)
    """What was counted in the rows that the stage makes itself."""
    is_built: bool = False
    """Whether the stage's task is built; feeds that it makes later are not checked."""
    _checked: list[str] = field(default_factory=list)
    """The purposes of the feeds whose data was compared."""

    def __post_init__(self) -> None:
        self.counted.unit = self.unit
        self.config, self.world = self.stage.config, self.stage.world

    def make(self, data: FeedData, order: Order, length: int, count: RowWeights | None, track: Any = None) -> Feed:
        """A feed of `length` steps; `track` shows how far it is."""
        if self.config.evidence_rounding:
            # Not without a learner: such a stage may write its rows in the order in which they come.
            order = Reordered(order, self.world.dp_size, self.config.batch_size, active=lambda: bool(self.learners))
        feed = Feed(
            data.rows,
            order,
            self.world,
            micro_rows=self.config.batch_size,
            length=length,
            count=count,
            collate=data.collate,
            workers=self.config.num_workers,
            prefetch=self.config.prefetch,
            unit=self.unit,
            row_seed=self.config.seed if data.keyed_random else None,
            track=track,
        )
        self.made.append(feed)
        return feed

    def check(self, data: FeedData, purpose: Literal["training", "validation"]) -> None:
        """Refuse random rows, and a resume on other data than the run was started on."""
        if self.is_built:
            return
        name = FeedName(self.stage.name, purpose, self._checked.count(purpose))
        self._checked.append(purpose)
        moved, in_worker = self.world.activity.made_progress, self.config.num_workers > 0
        reading = ReadOptions(self.config.seed, in_worker, moved, data.keyed_random, data.collate)
        check_data(data.rows, name, self.stage.rundir, self.world, reading)
