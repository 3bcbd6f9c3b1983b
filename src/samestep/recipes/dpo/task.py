"""Training: a policy that learns to prefer, against a reference that stays as it was.

The reference's log-probabilities are computed once for all pairs in a stage of their own, or live with every batch.
What that stage leaves has a key: all that it follows from. The stage that trains with it compares that first.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from samestep import ArtifactKey, Batch, Bench, Bucketed, Dump, Fit, Learner, Metrics, Tick, Weighted
from samestep.recipes.dpo.config import DpoConfig
from samestep.recipes.dpo.families import Family, PairRows, Pairs, padding
from samestep.recipes.dpo.objective import DPO, SAMPLED, SFT, Objective, PairLogProbs, first_loss, pair_terms
from samestep.train.artifacts.array_rows import ArrayRows
from samestep.train.learner.frozen import Frozen
from samestep.train.logging.metrics import MetricAccumulator, MetricValues
from samestep.train.record.config import named_source
from samestep.train.record.run_record import run_path

logger = logging.getLogger(__name__)

REFERENCE = "reference"
"""The name of the stage, of its artifact, and of the frozen network of a live reference."""
POLICY = "model"
CHOSEN, REJECTED = "reference_chosen", "reference_rejected"
Reference = Callable[[Batch], PairLogProbs]


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
            (train, validation), reference = read_cached(bench, family, pairs, policy), cached
        else:
            reference = live(bench, family, policy)
        drawn = Weighted(pairs.weights) if pairs.weights else None
        order = Bucketed(train.lengths, order=drawn) if config.bucketed else drawn
        collate = padding(family, bench.world)
        super().__init__(
            policy,
            bench.feed(train, order=order, collate=collate, count=family.count),
            partial(_loss, objective, family, reference),
            validation=bench.evaluation_feed(validation, collate=collate, count=family.count),
            derive=partial(with_loss, objective),
        )
        self.family = family
        self._bench, self._objective = bench, objective
        self._draws = bench.draws("dpo/diversity") if objective.diversity_lambda else None
        self._say("\n".join(pairs.about))

    def step(self, tick: Tick) -> Metrics:
        batches = self.feed[tick.step]
        if self._draws is not None:
            batches = self._bench.produced(batches, partial(self._sampled, tick.step), count=self.family.count)
        metrics = self.learner.update(batches, self._loss, self._objective.mix)
        if tick.step == 0:
            self._say_first(metrics)
        return metrics

    def validate(self, tick: Tick) -> MetricValues:
        """The first validation rows are written as samples, too."""
        found = super().validate(tick)
        if count := self._bench.sample_count:
            assert self.validation is not None
            rows = self.validation.first_rows(count)
            with self.learner.inference() as network:
                terms = self.learner.measure(self._loss, rows)
                shown = self.family.shown(network, rows, terms)
            self._bench.log_samples("pairs", *shown)
        return found

    def _sampled(self, step: int, batch: Batch) -> Batch:
        assert self._draws is not None
        with self.learner.inference() as network:
            return self.family.with_samples(network, batch, self._draws, step)

    def _say_first(self, metrics: Metrics) -> None:
        """What the first batch gave, before anything was learned: with dpo, a policy that is its reference has ln 2."""
        accumulator = MetricAccumulator(self._bench.world)
        accumulator.add(metrics)
        found, objective = accumulator.read(), self._objective
        if DPO not in found:  # the step was skipped
            return
        lines = []
        for name, kind in (("chosen", "preferred"), ("rejected", "other")):
            policy, log_ratio = found[f"{name}_log_prob"], found[f"{name}_reward"] / objective.beta
            per = " per token" if objective.is_by_token else ""
            lines.append(
                f"the {kind} sequences have log-probability {policy:.4f}, {log_ratio:+.2e} from the reference{per}"
            )
        wanted = first_loss(objective)
        known = "ln 2" if math.isclose(wanted, math.log(2)) else f"{wanted:.6f}"
        lines.append(f"loss {found[DPO]:.6f} ({found[DPO] - wanted:+.1e} from {known})")
        self._say("first batch: " + "\n             ".join(lines))

    def _say(self, text: str) -> None:
        """On the screen, and in the run's log."""
        if self._bench.world.is_main:
            logger.info(text)
        self._bench.screen.print(text)


def _loss(
    objective: Objective, family: Family, reference: Reference, network: nn.Module, batch: Batch
) -> Mapping[str, Tensor]:
    before = reference(batch)
    return pair_terms(objective, family.scores(network, batch), before)


def with_loss(objective: Objective, found: dict[str, float]) -> dict[str, float]:
    """The metrics of a validation, with what is minimised, and with the perplexity of the preferred sequences."""
    loss = sum(coefficient * found[name] for name, coefficient in objective.mix.items() if name in found)
    first = {"loss": loss, "accuracy": found["accuracy"], "margin": found["margin"]}
    recovery = {name: found[name] for name in ("recovery",) if name in found}
    return {**first, "perplexity": math.exp(min(found[SFT], 700.0)), **recovery, **found}


class AllRows:
    """The rows for training and then those for validation, as one."""

    def __init__(self, pairs: Pairs) -> None:
        self._parts = (pairs.train, pairs.validation)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        first = len(self._parts[0])
        return self._parts[0][index] if index < first else self._parts[1][index - first]

    def origins(self) -> list[Any]:
        return [origin for part in self._parts for origin in part.origins()]


class WithReference:
    """Rows with the reference's log-probabilities beside them."""

    def __init__(self, rows: PairRows, reference: ArrayRows, first: int) -> None:
        """`first` is where the rows begin in `reference`."""
        self._rows, self._reference, self._first = rows, reference, first
        self.lengths: Sequence[int] = rows.lengths

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {**self._rows[index], **self._reference[self._first + index]}

    def origins(self) -> list[Any]:
        return [*self._rows.origins(), *self._reference.origins()]


def build_dump(bench: Bench, family: Family) -> Dump:
    """The stage that computes the reference's log-probabilities, with all ranks."""
    config: DpoConfig = bench.config
    rows = AllRows(family.pairs())
    is_sharded = config.distributed.strategy == "fsdp"
    # Of the policy's name, so that weights that are drawn from the seed are the same.
    source = named_source(config) or family.first_weights
    network = bench.frozen(family.network, name=POLICY, source=source, shard=is_sharded)
    key = reference_key(bench, family, rows, network)

    def compute(batch: Batch) -> dict[str, Tensor]:
        with network.inference() as module:
            found = family.scores(module, batch).log_probs
        return {CHOSEN: found.chosen, REJECTED: found.rejected}

    fields: dict[str, tuple[Sequence[int], str]] = {CHOSEN: ((), "float64"), REJECTED: ((), "float64")}
    feed = bench.evaluation_feed(rows, collate=padding(family, bench.world))
    return Dump(feed, compute, bench.array_artifact(REFERENCE, len(rows), fields, key))


def reference_key(
    bench: Bench, family: Family, rows: AllRows, network: Learner | Frozen, *, with_weights: bool = True
) -> ArtifactKey:
    """All that cached log-probabilities follow from: every row, with what of it is scored, how, and the network.
    Collective."""
    config: DpoConfig = bench.config
    digest = hashlib.sha256()
    for number in range(len(rows)):
        for name, value in sorted(rows[number].items()):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.numpy().tobytes())
    how = {"temperature": config.temperature, "decoding order": config.decoding_order, "seed": config.seed}
    values = {"pairs": digest.hexdigest(), **how, "network": asdict(family.shape)}
    files = dict(family.files)
    named = named_source(config)
    if named is not None:  # a run has many files of weights, and goes by what is read of them
        path = Path(run_path(named, config.out))
        files["weights"] = {path.name: path} if path.is_file() else {}
    if not (with_weights and files.get("weights")):
        files.pop("weights", None)
        values |= {"weights": network.weights_hash()} if with_weights else {}
    return ArtifactKey.make(
        bench.world,
        "the cached log-probabilities of the reference",
        values=values,
        files=files,
        otherwise="start a new run that computes them, or use reference=live",
    )


def read_cached(bench: Bench, family: Family, pairs: Pairs, policy: Learner) -> tuple[WithReference, WithReference]:
    """The rows for training and for validation, with what the stage before left. Collective."""
    # The policy of a resumed run has moved on from its first weights, whose files may be gone.
    key = reference_key(bench, family, AllRows(pairs), policy, with_weights=not bench.resumed)
    found, first = bench.read_array_artifact(REFERENCE, REFERENCE, key), len(pairs.train)
    return WithReference(pairs.train, found, 0), WithReference(pairs.validation, found, first)


def cached(batch: Batch) -> PairLogProbs:
    """The reference's log-probabilities, where rows have them."""
    return PairLogProbs(batch[CHOSEN], batch[REJECTED])


def live(bench: Bench, family: Family, policy: Learner) -> Reference:
    """The policy as the stage began, asked with every batch."""
    is_sharded = bench.config.distributed.strategy == "fsdp" and not policy.has_adapters
    network = bench.frozen(policy, shard=is_sharded)

    def reference(batch: Batch) -> PairLogProbs:
        pairs = {name: value for name, value in batch.items() if name != SAMPLED}  # nobody asks what it says of these
        with network.inference() as module:
            return family.scores(module, pairs).log_probs

    return reference
