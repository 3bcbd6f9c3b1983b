"""What proteins and texts have in common, so that losses, stages and files are written once."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from torch import Tensor, nn

from samestep import Batch, Lora, UserError, World, pad_rows
from samestep.core.paths import expand_home
from samestep.data.json_records import json_records
from samestep.models.model_files import FilesByPurpose
from samestep.recipes.dpo.objective import PairScores
from samestep.train.learner.draws import Draws

FamilyName = Literal["protein", "text"]
Item = TypeVar("Item")
SHOWN = 20
"""How many problems are listed one by one; the others are counted by their kind."""
_COLUMNS: Mapping[str, FamilyName] = {"pdb_file": "protein", "prompt": "text", "chosen": "text", "rejected": "text"}


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
    """The data of a run, in two parts."""

    train: PairRows
    validation: PairRows
    left_out: str = ""
    """What was left out of the files, and why."""


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
        """What rows and scores follow from beside the weights: the files of a model of transformers."""

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

    def save(self, path: Path, weights: Mapping[str, Tensor]) -> None:
        """Write weights as other programs read them, atomically."""


def padding(family: Family, world: World) -> Callable[[list[Any]], Mapping[str, Tensor]]:
    """Makes batches of a feed's rows."""
    return partial(pad_rows, pad=family.pad, multiple=family.pad_multiple if world.device.type == "cuda" else 1)


def family_of(path: str) -> FamilyName:
    """What kind of records a file holds, by the columns of the first one that has any of them."""
    file = expand_home(path)
    columns = [list(value) for _, value in json_records(file) if isinstance(value, dict)]
    for column in (name for names in columns for name in names):
        if column in _COLUMNS:
            return _COLUMNS[column]
    raise UserError(
        f"Give {path} the columns pdb_file, preferred_seq, unpreferred_seq (proteins) or prompt, chosen, rejected "
        f"(texts); its first record has {', '.join(map(repr, columns[0])) if columns else 'none'}."
    )


@dataclass(frozen=True)
class Problem:
    """What is wrong with a record."""

    record: int
    """The record's number in its file, from 1."""
    where: str
    about: str
    text: str


def leave_out(file: Path, problems: Sequence[Problem], total: int, valid: int, skip_invalid: bool) -> str:
    """Refuse a file with problems, or say what is left out and why, where a record counts by its first problem."""
    if problems and not (skip_invalid and valid):
        raise UserError(_report(file, problems, total, skip_invalid))
    firsts = {problem.record: problem.about for problem in reversed(problems)}
    why = ", ".join(f"{count} because of {about}" for about, count in sorted(Counter(firsts.values()).items()))
    return f"{valid} of {total} records of {file}; left out: {why}" if why else ""


def _report(file: Path, problems: Sequence[Problem], total: int, skip_invalid: bool) -> str:
    """All problems: the first ones line by line, the others counted."""
    wrong = len({problem.record for problem in problems})
    if skip_invalid:
        head = f"Give records that can be used; none of the {total} of {file} can:"
    else:
        head = f"Fix {wrong} of {total} records of {file}, or leave them out with skip_invalid=true:"
    lines = [f"  {problem.where}: {problem.text}" for problem in problems[:SHOWN]]
    if rest := Counter(problem.about for problem in problems[SHOWN:]):
        counted = ", ".join(f"{count} about {about}" for about, count in sorted(rest.items()))
        lines.append(f"  and {sum(rest.values())} more problems: {counted}")
    return "\n".join([head, *lines])


def split_groups(
    items: Sequence[Item], groups: Sequence[str], fraction: float, seed: int
) -> tuple[list[Item], list[Item]]:
    """Items for training and for validation, each in their order; those of one group stay together."""
    chosen = validation_groups(groups, fraction, seed)
    parts: tuple[list[Item], list[Item]] = ([], [])
    for item, group in zip(items, groups, strict=True):
        parts[group in chosen].append(item)
    return parts


def validation_groups(groups: Sequence[str], fraction: float, seed: int) -> set[str]:
    """The groups that are for validation, given the group of each record.

    In an order by hash, a group is taken if that brings their number of records closer to the fraction, rounded up. If
    none does, the smallest group is taken. One group at least is left for training.
    """
    sizes = Counter(groups)
    if len(sizes) < 2:
        raise UserError(
            f"Give records that differ, or name a file for validation (val_data): the {len(groups)} here cannot be "
            "split in two."
        )
    room = min(math.ceil(round(len(groups) * fraction, 9)), len(groups) - 1)  # rounded: 100 * 0.07 is above 7
    in_order = sorted(sizes, key=lambda group: hashlib.sha256(f"{seed} {group}".encode()).digest())
    chosen: set[str] = set()
    for group in in_order:
        if sizes[group] < 2 * room and len(chosen) < len(sizes) - 1:
            chosen.add(group)
            room -= sizes[group]
    return chosen or {min(in_order, key=lambda group: sizes[group])}
