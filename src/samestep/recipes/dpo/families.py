"""What proteins and texts have in common, so that losses, stages and files are written once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from torch import Tensor, nn

from samestep import Batch, Lora, UserError, World, pad_rows
from samestep.data.data_file import DataFile
from samestep.data.records.mixture import shown
from samestep.data.records.reading import Records
from samestep.data.split import choose_parts, split_records
from samestep.models.model_files import FilesByPurpose
from samestep.recipes.dpo.config import DataConfig, DpoConfig
from samestep.recipes.dpo.objective import PairScores
from samestep.train.learner.draws import Draws
from samestep.train.record.samples import Sample


class Numbered(Protocol):
    """A pair of records."""

    @property
    def number(self) -> int:
        """Its own in all of the run's data."""


Item = TypeVar("Item", bound=Numbered)
Origins = Sequence[DataFile | np.ndarray]
FamilyName = Literal["protein", "text"]
_COLUMNS: Mapping[str, FamilyName] = {"pdb_file": "protein", "prompt": "text", "chosen": "text", "rejected": "text"}


LEAST_SOURCES = 10
"""Structures, or prompts, from which on these are kept together unless the user says otherwise."""


class Keys(NamedTuple):
    """What a pair is told apart by: equal where two records say the same, whatever their files are."""

    pair: str
    source: str
    """Its structure, or its prompt."""
    preferred: str


@dataclass(frozen=True)
class ReadPairs(Generic[Item]):
    """The pairs of a file that can be used."""

    pairs: Sequence[Item]
    origins: Origins
    records: Records | None = None
    sources: Mapping[int, int] = field(default_factory=dict)
    """Which of several files each pair is from, by its number."""

    def weights(self, pairs: Sequence[Item]) -> list[float] | None:
        """How often each of these is drawn, in proportion; None: once an epoch."""
        return self.records.draw_weights([self.sources[pair.number] for pair in pairs]) if self.records else None


class PairRows(Protocol):
    """Pairs as a feed reads them. Each has `record`, a number of its own in all of the run's data."""

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens or residues of each row, so that rows of similar length share a step."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Tensor]: ...

    def origins(self) -> Sequence[Any]:
        """The files that they come from, for the comparison of a resumed run."""


@dataclass(frozen=True)
class Pairs:
    """The data of a run, in parts."""

    train: PairRows
    validation: PairRows
    test: PairRows
    """For `samestep evaluate` alone; mostly empty."""
    split_by: Literal["pair", "structure"] | None
    """What was kept together; None where nothing was split."""
    about: Sequence[str]
    """What the user should know of them, in sentences."""
    weights: Sequence[float] | None = None
    """How often each training pair is drawn, in proportion; None: once an epoch."""


class Family(Protocol):
    """A kind of sequences, with the network that is trained on them."""

    @property
    def pad(self) -> Mapping[str, float]:
        """What a feed pads rows with."""

    @property
    def pad_multiple(self) -> int:
        """A GPU's rows are padded to a multiple of this, so that few shapes are compiled and recorded."""

    @property
    def first_weights(self) -> str | None:
        """The weight file that the network begins with; None: it is built with weights, or they follow from the
        seed."""

    @property
    def lora(self) -> Lora | None:
        """Adapters to train in place of the whole network."""

    @property
    def shape(self) -> Any:
        """The shape of a built-in network, a dataclass."""

    @property
    def files(self) -> FilesByPurpose:
        """The files that rows and scores follow from: weights, and a tokenizer and a configuration beside them."""

    @property
    def files_by_default(self) -> bool:
        """Whether weight files are written unless the user says otherwise."""

    def network(self) -> nn.Module:
        """The network with its first weights; without dropout, which would tell the policy from its reference."""

    def pairs(self) -> Pairs:
        """Read, check and split the data; the same on every rank."""

    def scores(self, network: nn.Module, batch: Batch) -> PairScores:
        """Log-probabilities of both sequences of each row, differentiable."""

    def count(self, batch: Batch) -> Mapping[str, Tensor]:
        """What sums over tokens or residues are divided by: their number, by term."""

    def with_samples(self, network: nn.Module, batch: Batch, draws: Draws, step: int) -> dict[str, Tensor]:
        """A batch with sequences that the network wrote itself, for the term that keeps them different."""

    def shown(self, network: nn.Module, batch: Batch, terms: Mapping[str, Tensor]) -> Sequence[Sample]:
        """The rows of a batch for people to look at; `terms` are those of the loss. All ranks call it alike."""

    def save(self, path: Path, weights: Mapping[str, Tensor]) -> None:
        """Write weights as other programs read them, atomically."""


def padding(family: Family, world: World) -> Callable[[list[Any]], Mapping[str, Tensor]]:
    """Makes batches of a feed's rows."""
    return partial(pad_rows, pad=family.pad, multiple=family.pad_multiple if world.device.type == "cuda" else 1)


def family_of(records: Records) -> FamilyName:
    """What kind of records a file holds, by the columns of the first one that has any of them."""
    for column in (name for row in records for name in row.values):
        if column in _COLUMNS:
            return _COLUMNS[column]
    raise UserError(
        f"Give {records.path} the columns pdb_file, preferred_seq, unpreferred_seq (proteins) or prompt, chosen, "
        f"rejected (texts); it has {', '.join(map(repr, records.columns)) or 'none'}."
    )


@dataclass(frozen=True)
class Division(Generic[Item]):
    """How the pairs of a family become the parts of a run."""

    keys: Callable[[Item], Keys]
    rows: Callable[[Sequence[Item], Origins], PairRows]
    names: tuple[str, str]
    """What `Keys.source` and `Keys.preferred` are."""

    def __call__(self, config: DpoConfig, given: ReadPairs[Item], other: ReadPairs[Item] | None) -> Pairs:
        """The parts of the given pairs; validation is a part of them, or the `other` ones that are not among them."""
        data, keys = config.data, list(map(self.keys, given.pairs))
        shares = (data.validation_fraction if other is None else 0.0, data.test_fraction)
        split_by = choose_split(data, keys, shares, config.seed) if any(shares) else None
        groups = [key.source if split_by == "structure" else key.pair for key in keys]
        train, validation, test = split_records(
            given.pairs, groups, validation=shares[0], test=shares[1], seed=config.seed
        )
        about = []
        if other is not None:
            known = {key.pair for key in keys}
            validation = [pair for pair in other.pairs if self.keys(pair).pair not in known]
            if left_out := len(other.pairs) - len(validation):
                about = [_left_out(data, left_out, len(other.pairs))]
        parts = {"training": train, "validation": validation, **({"test": test} if test else {})}
        counts = ", ".join(f"{len(part):,} pairs for {name}" for name, part in parts.items())
        what = {"pair": "pair", "structure": self.names[0]}
        about = [counts + (f" (split by {what[split_by]})" if split_by else ""), *about]
        for name in list(parts)[1:]:
            about += self._shared(name, parts[name], train, split_by == "pair")
        held_out = self.rows(validation, (other or given).origins)
        rows, last = self.rows(train, given.origins), self.rows(test, given.origins)
        return Pairs(rows, held_out, last, split_by, about, given.weights(train))

    def _shared(self, part: str, pairs: Sequence[Item], train: Sequence[Item], is_by_pair: bool) -> list[str]:
        """What the accuracy of a part means, if training has seen structures or preferred sequences of it."""
        trained = list(map(self.keys, train))
        sources, preferred = {key.source for key in trained}, {key.preferred for key in trained}
        held_out = list(map(self.keys, pairs))
        shared = [sum(key.source in sources for key in held_out), sum(key.preferred in preferred for key in held_out)]
        if not any(shared):
            return []
        counted = " and ".join(f"the {name} of {count:,}" for count, name in zip(shared, self.names) if count)
        accuracy = "val/accuracy" if part == "validation" else "accuracy"
        apart = len(sources) > 1 and shared[0] and is_by_pair
        return [
            f"of {len(pairs):,} pairs for {part}, training has {counted}: for these, {accuracy} says what was "
            "remembered, not how well new ones are told apart"
            + (f"; data.split_by=structure keeps each {self.names[0]} in one part" if apart else "")
        ]


def choose_split(
    data: DataConfig, keys: Sequence[Keys], shares: tuple[float, float], seed: int
) -> Literal["pair", "structure"]:
    """What stays together. By itself a structure, if there are enough for parts of about the size that is asked for:
    within a fifth of it, or one record."""
    if data.split_by != "auto":
        return data.split_by
    sources = [key.source for key in keys]
    if len(set(sources)) < LEAST_SOURCES:
        return "pair"
    sizes = np.bincount(choose_parts(sources, *shares, seed), minlength=3)[1:]
    wanted = [share * len(sources) for share in shares]
    is_near = all(abs(size - number) <= max(1, number / 5) for size, number in zip(sizes.tolist(), wanted))
    return "structure" if is_near else "pair"


def _left_out(data: DataConfig, left_out: int, count: int) -> str:
    if left_out == count:
        raise UserError(
            f"Give validation records that are not for training too: all {count:,} of {data.validation} are in "
            f"{shown(data.train)}. Or leave out data.validation (--val_data), for a share of the training records."
        )
    given = f"{left_out:,} of {count:,} records of {data.validation}"
    return f"{given} are in {shown(data.train)} too, and left out of validation"
