"""The reference's log-probabilities: computed once for all pairs in a stage of their own, or live with every batch.

What the stage leaves is named by all that it depends on: the pairs with what of them is scored, how log-probabilities
are taken, and the weights. A stage that trains with it compares that first.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from samestep import Batch, Bench, Dump, Learner, UserError
from samestep.core.records import read_object, write_json
from samestep.recipes.dpo.config import DpoConfig
from samestep.recipes.dpo.families import Family, PairRows, Pairs, padding
from samestep.recipes.dpo.objective import SAMPLED, PairLogProbs
from samestep.train.artifacts.array_rows import ArrayRows
from samestep.train.learner.content_hash import content_hash
from samestep.train.record.config import named_source

REFERENCE = "reference"
"""The name of the stage, of its artifact, and of the frozen network of a live reference."""
KEY = "key.json"
POLICY = "model"
CHOSEN, REJECTED = "reference_chosen", "reference_rejected"
Reference = Callable[[Batch], PairLogProbs]


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
        """Where they come from."""
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
        """Where both come from."""
        return [*self._rows.origins(), *self._reference.origins()]


def build_dump(bench: Bench, open_family: Callable[..., Family]) -> Dump:
    """The stage that computes them, with all ranks."""
    config: DpoConfig = bench.config
    family = open_family(config, bench.world)
    pairs = family.pairs()
    rows = AllRows(pairs)
    is_sharded = config.distributed.strategy == "fsdp"
    # Of the policy's name, so that weights that are drawn from the seed are the same.
    source = named_source(config) or family.first_weights
    network = bench.frozen(family.network, name=POLICY, source=source, shard=is_sharded)
    weights = str(bench.first_launch.of_this_stage()[f"frozen/{POLICY}"])
    if bench.world.is_main:
        write_json(bench.artifact(KEY), {**key_of(config, rows), "weights": weights})

    def compute(batch: Batch) -> dict[str, Tensor]:
        with network.inference() as module:
            found = family.scores(module, batch).log_probs
        return {CHOSEN: found.chosen, REJECTED: found.rejected}

    fields: dict[str, tuple[Sequence[int], str]] = {CHOSEN: ((), "float64"), REJECTED: ((), "float64")}
    feed = bench.evaluation_feed(rows, collate=padding(family, bench.world))
    return Dump(feed, compute, bench.array_artifact(REFERENCE, len(rows), fields))


def key_of(config: DpoConfig, rows: AllRows) -> dict[str, str]:
    """What cached log-probabilities depend on beside the weights: every row, with what of it is scored, and how."""
    how = [config.family, config.temperature, config.decoding_order, config.seed]
    digest = hashlib.sha256()
    for number in range(len(rows)):
        for name, value in sorted(rows[number].items()):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.numpy().tobytes())
    return {"pairs": digest.hexdigest(), "how": json.dumps(how)}


def read_cached(bench: Bench, pairs: Pairs, policy: Learner) -> tuple[WithReference, WithReference]:
    """The rows for training and for validation, with what the stage before left."""
    _check_key(bench, AllRows(pairs), policy)
    found = bench.read_array_artifact(REFERENCE, stage=REFERENCE)
    first = len(pairs.train)
    return WithReference(pairs.train, found, 0), WithReference(pairs.validation, found, first)


def _check_key(bench: Bench, rows: AllRows, policy: Learner) -> None:
    """Refuse what was computed for other pairs, in another way or with other weights. Collective."""
    # A resumed policy has moved on, and adapters have no effect yet.
    weights = None if bench.resumed or policy.has_adapters else content_hash(policy.weights())

    def check() -> None:
        if not bench.world.is_main:
            return
        known, found = read_object(bench.artifact(KEY, stage=REFERENCE)), key_of(bench.config, rows)
        if weights is not None:
            found["weights"] = weights
        other = [name for name, value in found.items() if known.get(name) != value]
        if other:
            raise UserError(
                f"the cached log-probabilities of the reference in {bench.artifact(REFERENCE, stage=REFERENCE)} were "
                f"computed with another value of {', '.join(other)}; start a new run, or use reference=live"
            )

    bench.world.run_on_all_ranks("comparing the cached reference", check)


def cached(batch: Batch) -> PairLogProbs:
    """The reference's log-probabilities, where rows have them."""
    return PairLogProbs(batch[CHOSEN], batch[REJECTED])


def live(bench: Bench, family: Family, policy: Learner) -> Reference:
    """The policy as the stage began, asked with every batch."""
    config: DpoConfig = bench.config
    is_sharded = config.distributed.strategy == "fsdp" and not policy.has_adapters
    network = bench.frozen(policy, shard=is_sharded)

    def reference(batch: Batch) -> PairLogProbs:
        pairs = {name: value for name, value in batch.items() if name != SAMPLED}  # nobody asks what it says of these
        with network.inference() as module:
            return family.scores(module, pairs).log_probs

    return reference
