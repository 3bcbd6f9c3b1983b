"""The training stage: a policy that learns to prefer, against a reference that stays as it was."""

import logging
import math
from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn

from samestep import Batch, Bench, Bucketed, Fit, Metrics, Tick
from samestep.recipes.dpo.config import DpoConfig
from samestep.recipes.dpo.families import Family, PairRows, padding
from samestep.recipes.dpo.objective import DPO, SFT, Objective, first_loss, pair_terms
from samestep.recipes.dpo.reference import POLICY, Reference, cached, live, read_cached
from samestep.train.logging.metrics import MetricAccumulator
from samestep.train.record.config import named_source

logger = logging.getLogger(__name__)


class Preferences(Fit):
    """`Fit` that says in its first step how policy and reference compare."""

    def __init__(self, bench: Bench, family: Family) -> None:
        config: DpoConfig = bench.config
        objective = config.objective
        first = None if named_source(config) else family.first_weights
        # Before the data is read, so that a trained network can be loaded where the data is not at hand.
        policy = bench.learner(family.network, name=POLICY, lora=family.lora, init_from=first)
        pairs = family.pairs()
        reference: Reference
        train: PairRows = pairs.train
        validation: PairRows = pairs.validation
        if config.reference == "cached":
            (train, validation), reference = read_cached(bench, pairs, policy), cached
        else:
            reference = live(bench, family, policy)
        order = Bucketed(train.lengths) if config.bucketed else None
        collate = padding(family, bench.world)
        super().__init__(
            policy,
            bench.feed(train, order=order, collate=collate, count=family.count),
            partial(_loss, objective, family, reference),
            validation=bench.evaluation_feed(validation, collate=collate, count=family.count),
            derive=partial(_with_loss, objective),
        )
        self.family = family
        self._bench, self._objective = bench, objective
        self._draws = bench.draws("dpo/diversity") if objective.diversity_lambda else None
        if pairs.left_out:
            bench.screen.print(pairs.left_out)
        bench.screen.print(f"{len(train):,} pairs for training, {len(validation):,} pairs for validation")

    def step(self, tick: Tick) -> Metrics:
        """One update."""
        batches = self.feed[tick.step]
        if self._draws is not None:
            batches = self._bench.produced(batches, partial(self._sampled, tick.step), count=self.family.count)
        metrics = self.learner.update(batches, self._loss, self._objective.mix)
        if tick.step == 0:
            self._say_first(metrics)
        return metrics

    def _sampled(self, step: int, batch: Batch) -> Batch:
        assert self._draws is not None
        with self.learner.inference() as network:
            return self.family.with_samples(network, batch, self._draws, step)

    def _say_first(self, metrics: Metrics) -> None:
        """What the first batch gave, before anything was learned: with dpo, a policy that is its reference has ln 2."""
        accumulator = MetricAccumulator(self._bench.world)
        accumulator.add(metrics)
        found, objective = accumulator.read(), self._objective
        lines = []
        for name, kind in (("chosen", "preferred"), ("rejected", "other")):
            policy, gain = found[f"{name}_log_prob"], found[f"{name}_reward"] / objective.beta
            per = " per token" if objective.length_normalised else ""
            lines.append(f"the {kind} sequences have log-probability {policy:.4f}, {gain:+.2e} from the reference{per}")
        wanted = first_loss(objective)
        known = "ln 2" if math.isclose(wanted, math.log(2)) else f"{wanted:.6f}"
        lines.append(f"loss {found[DPO]:.6f} ({found[DPO] - wanted:+.1e} from {known})")
        text = "first batch: " + "\n             ".join(lines)
        if self._bench.world.is_main:
            logger.info(text)
        self._bench.screen.print(text)


def _loss(
    objective: Objective, family: Family, reference: Reference, network: nn.Module, batch: Batch
) -> Mapping[str, Tensor]:
    before = reference(batch)
    return pair_terms(objective, family.scores(network, batch), before)


def _with_loss(objective: Objective, found: dict[str, float]) -> dict[str, float]:
    """The metrics of a validation, with what is minimised, and with the perplexity of the preferred sequences.

    The first ones are shown on the screen.
    """
    loss = sum(coefficient * found[name] for name, coefficient in objective.mix.items() if name in found)
    first = {"loss": loss, "accuracy": found["accuracy"], "margin": found["margin"]}
    recovery = {name: found[name] for name in ("recovery",) if name in found}
    return {**first, "perplexity": math.exp(min(found[SFT], 700.0)), **recovery, **found}
