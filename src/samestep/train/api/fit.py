"""The task most recipes need: one learner, one feed, one loss."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from samestep.core.arguments import check_function, explains_arguments
from samestep.data.feed import Feed, MicroBatches
from samestep.train.api.recipe_checks import check_feed, check_learner
from samestep.train.api.whole_set import WholeSet
from samestep.train.learner.ema import AVERAGE, Average
from samestep.train.learner.gradient_weighting import Loss, Mix, check_rows, check_terms
from samestep.train.learner.learner import Learner
from samestep.train.logging.metrics import Metric, MetricAccumulator, Metrics, MetricValues
from samestep.train.record.progress import Tick


def as_is(metrics: dict[str, float]) -> MetricValues:
    """The metrics, nothing derived."""
    return metrics


class Fit:
    """Fit a learner to a feed; validate on every row of another, once."""

    @explains_arguments(
        "Fit",
        lr="set learning_rate, or give the learner its own: bench.learner(network, rate=lambda step: 1e-3)",
        optimizer="give it to the learner: bench.learner(network, optimizer=...)",
        val="give validation=bench.evaluation_feed(rows)",
        metrics="give measure=..., a function like the loss, or derive=...",
    )
    def __init__(
        self,
        learner: Learner,
        feed: Feed,
        loss: Loss,
        *,
        validation: Feed | None = None,
        measure: Loss | None = None,
        derive: Callable[[dict[str, float]], MetricValues] = as_is,
        average: Average | None = None,
        mix: Mix | Callable[[Tick], Mix] | None = None,
        whole_set: WholeSet | None = None,
        change: Callable[[MicroBatches], MicroBatches] | None = None,
    ) -> None:
        """`loss(module, batch)` gives, by name, one value for each row. `validation` is an evaluation feed; the
        means of `measure` (default: the loss) over its rows stand under `val/`, and `derive` adds to them, such as a
        perplexity.

        `mix` gives the coefficient of each term that is trained, as numbers or by step; all others are logged, and a
        loss of one term needs none. `average` is kept up to date and is what validation measures. `whole_set`
        gives metrics of the validation set that are no means over its rows; `derive` gets them too. `change` is given
        each step's micro-batches with the ids of its whole global batch, and returns what is trained on."""
        check_learner("the learner of Fit", learner)
        check_feed("the feed of Fit", feed)
        check_function("the loss of Fit", loss, ["module", "batch"])
        if validation is not None:
            check_feed("the validation of Fit", validation, "bench.evaluation_feed")
        if measure is not None:
            check_function("the measure of Fit", measure, ["module", "batch"])
        if callable(mix):
            check_function("the mix of Fit", mix, ["tick"])
        if change is not None:
            check_function("the change of Fit", change, ["micro_batches"])
        check_function("derive of Fit", derive, ["metrics"])
        feed.keep_together(learner.rows_together)
        self.length = feed.length
        self.state: Mapping[str, Any] = {learner.name: learner} | ({AVERAGE: average} if average else {})
        self.learner, self.feed, self.validation, self.average = learner, feed, validation, average
        self._loss, self._measure, self._derive, self._mix = loss, measure or loss, derive, mix
        self._whole_set, self._change = whole_set, change

    def step(self, tick: Tick) -> Metrics:
        """One update on the step's global batch."""
        mix = self._mix(tick) if callable(self._mix) else self._mix
        rows = self.feed[tick.step]
        metrics = self.learner.update(self._change(rows) if self._change else rows, self._loss, mix)
        if self.average:
            self.average.update()
        return metrics

    def weights_in_use(self) -> AbstractContextManager[None]:
        """A context in which the network has the averaged weights, where there are some."""
        return self.average.in_use() if self.average else nullcontext()

    def validate(self, tick: Tick) -> MetricValues:
        """The mean of every term over all validation rows, under `val/`."""
        if self.validation is None:
            return {}
        with self.weights_in_use():
            metrics = evaluate(self.learner, self.validation, self._measure, tick.step)
            if self._whole_set:
                metrics |= self._whole_set.evaluate(self.learner, self.validation)
        return {f"val/{name}": value for name, value in self._derive(metrics).items()}


def evaluate(learner: Learner, feed: Feed, measure: Loss, step: int = 0) -> dict[str, float]:
    """Means over every row of `feed`, each counted once, equal on all ranks and at any world size.

    `measure(module, batch)` gives values by row, as a loss does; it is called in evaluation mode, without gradients.
    `step` is for the records of `samestep verify` alone. Every rank calls it alike.
    """
    check_learner("the learner of evaluate", learner)
    check_feed("the feed of evaluate", feed, "bench.evaluation_feed")
    check_function("the measure of evaluate", measure, ["module", "batch"])
    accumulator = MetricAccumulator(learner.world)
    seen = []
    with learner.inference():
        for micro_batches in feed:
            for batch in micro_batches.batches:
                measured = learner.measure(measure, batch)
                check_terms("the measure of the validation", measured)
                micro_batches.terms.update(measured)
                for term, rows in measured.items():
                    check_rows(f"term {term!r} of the validation", rows, len(batch["live"]))
                    total = torch.where(batch["live"], rows.double(), 0.0).sum()
                    accumulator.add({term: Metric(total, 0.0)})
            accumulator.add({term: Metric(0.0, micro_batches.weight(term)) for term in accumulator.names()})
            seen += [micro_batches.ids[start:stop] for start, stop in micro_batches.spans]
    feed.check_counted(only_if_missed=True)  # weights that only training counts are no error here
    metrics = accumulator.read()
    if learner.recorder:
        learner.recorder.validation(step, np.concatenate(seen), metrics)
    return metrics
