"""The feeds of one stage. A resume on other data than the run was started on is refused, by a fingerprint of the data
of every feed; so is data that is random."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from samestep.checkpoint.manifest import checkpoint_folders
from samestep.core.errors import RunFailed, UserError
from samestep.core.json_files import Json, write_json
from samestep.core.rundir import RunDir
from samestep.data.chosen_rows import RandomRows, ReadOptions
from samestep.data.datasets import FeedData
from samestep.data.feed import CountedTerms, Feed
from samestep.data.fingerprint import compare_fingerprint, take_fingerprint
from samestep.data.loading import Rows, RowWeights
from samestep.data.order import Order, Reordered
from samestep.data.streams.reading import StreamPlace
from samestep.train.api.stream_checks import check_stream
from samestep.train.learner.learner import Learner
from samestep.train.record.first_launch import StageInfo
from samestep.train.record.fixed_values import DATA, read_fixed
from samestep.world.world import World


@dataclass
class StageFeeds:
    """Makes them, in the order in which the stage asks for them."""

    stage: StageInfo
    unit: str
    learners: Sequence[Learner]
    """The learners that the stage has so far."""
    made: list[Feed] = field(default_factory=list)
    evaluations: list[Feed] = field(default_factory=list)
    """Those of them that go through every row once."""
    counted: CountedTerms = field(default_factory=CountedTerms)
    """What was counted in the rows that the stage makes itself."""
    compares_data: bool = True
    """Whether data is compared with that of the first launch: not that of feeds which a task makes once it is built."""
    _checked: list[str] = field(default_factory=list)
    """The purposes of the feeds whose data was compared."""

    def __post_init__(self) -> None:
        self.counted.unit = self.unit
        self.config, self.world = self.stage.config, self.stage.world

    def make(self, data: FeedData, order: Order, length: int, count: RowWeights | None, track: Any = None) -> Feed:
        """A feed of `length` steps; `track` shows how far a pass over all of them is, for evaluation."""
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
        if track is not None:
            self.evaluations.append(feed)
        return feed

    def places(self) -> dict[str, StreamPlace]:
        """How far the training feeds of streams are, by name, for the checkpoint."""
        places = [feed.place for feed in self.made if feed.place is not None and not feed.is_tracked]
        return {f"place in stream {number}": place for number, place in enumerate(places, 1)}

    def check(self, data: FeedData, purpose: Literal["training", "validation"]) -> None:
        """Refuse random rows, and a resume on other data than the run was started on."""
        if not self.compares_data:
            return
        name = FeedName(self.stage.name, purpose, self._checked.count(purpose))
        self._checked.append(purpose)
        moved, in_worker = self.world.activity.made_progress, self.config.num_workers > 0
        reading = ReadOptions(self.config.seed, in_worker, moved, data.keyed_random, data.collate)
        check_stream(data.rows, str(name), self.world, reading)
        check_data(data.rows, name, self.stage.rundir, self.world, reading)


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeedName:
    """Which of a stage's feeds is meant."""

    stage: str
    purpose: Literal["training", "validation"]
    number: int
    """Among the feeds of this purpose, from 0."""

    def __str__(self) -> str:
        which = f" number {self.number + 1}" if self.number else ""
        return f"the {self.purpose} data{which} of stage {self.stage!r}"


def check_data(rows: Rows, name: FeedName, rundir: RunDir, world: World, reading: ReadOptions) -> None:
    """Record the data's fingerprint, or compare it with the recorded one. Collective: all ranks refuse or none does."""
    refusal, failure = "", None
    if world.is_main:
        try:
            with world.activity.doing("data"):
                refusal = _compare_or_record(rows, name, rundir, reading)
        except RandomRows as random:
            refusal = f"{name} {random}"
        except Exception as error:  # what rows raise here they would raise in training
            failure = error
            world.report_failure(error)
    refusal, failed = world.share([refusal, failure is not None])
    if failure is not None:
        raise failure
    if failed:
        world.raise_peer_failure()
        raise RunFailed(f"rank 0 could not read {name}; its log says why")
    if refusal:
        raise UserError(refusal)


def _compare_or_record(rows: Rows, name: FeedName, rundir: RunDir, reading: ReadOptions) -> str:
    """Rank 0's part: why the run cannot go on with this data; empty if it can."""
    known = read_fixed(rundir)
    records: list[Json] = known.setdefault(name.stage, {}).setdefault(DATA, {}).setdefault(name.purpose, [])
    if name.number >= len(records):
        records.append(take_fingerprint(rows, reading))
        if checkpoint_folders(rundir.checkpoints(name.stage)):
            logger.info("%s had no fingerprint in this run; it is recorded from now on", name)
        write_json(rundir.first_launch, known)
        return ""
    before = records[name.number]
    found = compare_fingerprint(before, rows, reading)
    if found.difference:
        return (
            f"{name} has changed since this run was started ({found.difference}); restore the data, or start a new "
            f"run (init_from={rundir.path} keeps the weights)"
        )
    if found.is_new:
        logger.info("%s has a fingerprint of another kind now; it is recorded from now on", name)
    if found.record != before:
        records[name.number] = found.record
        write_json(rundir.first_launch, known)
    return ""
