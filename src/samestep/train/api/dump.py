"""A task without a learner: what a function gives for every row of a feed, written by all ranks for later stages."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from samestep.core.arguments import check_function
from samestep.data.feed import Feed
from samestep.data.loading import Batch
from samestep.train.api.recipe_checks import check_feed
from samestep.train.artifacts.array_writer import ArrayArtifact
from samestep.train.logging.metrics import Metric, Metrics
from samestep.train.record.config import Config
from samestep.train.record.progress import Tick

C = TypeVar("C", bound=Config)


class Dump:
    """Writes what `compute` gives for every row of `feed`, which is one of `bench.evaluation_feed`, into `artifact`."""

    def __init__(self, feed: Feed, compute: Callable[[Batch], Mapping[str, Tensor]], artifact: ArrayArtifact) -> None:
        """`compute` takes a batch, without gradients, and gives every field of the artifact, one row for each of it."""
        check_feed("the feed of Dump", feed, "bench.evaluation_feed")
        check_function("compute of Dump", compute, ["batch"])
        self.length = feed.length
        self.state: Mapping[str, Any] = {}  # the runtime saves the artifact itself
        self._feed, self._compute, self._artifact = feed, compute, artifact

    def step(self, tick: Tick) -> Metrics:
        """Compute and write this rank's rows of the step. Filler rows are computed too, for sharded networks."""
        micro_batches = self._feed[tick.step]
        for batch, (start, stop) in zip(micro_batches.batches, micro_batches.spans):
            with torch.no_grad():
                values = self._compute(batch)
            if stop > start:
                self._artifact.write(micro_batches.ids[start:stop, 1], values)
        return {f"count/{unit}": Metric(weight, same=True) for unit, weight in micro_batches.weights.items()}


class DumpSettings(Protocol):
    """The part of a recipe's settings that is about such a stage."""

    @property
    def batch_size(self) -> int:
        """Rows at once on a device."""

    @property
    def save_every(self) -> int:
        """Steps that a kill may cost."""


def dump_config(config: C, own: DumpSettings) -> C:
    """The settings of a run, for its stage that only writes."""
    saves = replace(config.checkpoint, every_steps=own.save_every)
    return replace(config, batch_size=own.batch_size, checkpoint=saves)
