"""What proteins and texts have in common, so that losses, stages and files are written once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from samestep import Batch, Lora, UserError, World, pad_rows
from samestep.data.records.reading import Records
from samestep.models.model_files import FilesByPurpose
from samestep.recipes.dpo.objective import PairScores
from samestep.train.learner.draws import Draws

FamilyName = Literal["protein", "text"]
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


def family_of(records: Records) -> FamilyName:
    """What kind of records a file holds, by the columns of the first one that has any of them."""
    for column in (name for row in records for name in row.values):
        if column in _COLUMNS:
            return _COLUMNS[column]
    raise UserError(
        f"Give {records.path} the columns pdb_file, preferred_seq, unpreferred_seq (proteins) or prompt, chosen, "
        f"rejected (texts); it has {', '.join(map(repr, records.columns)) or 'none'}."
    )
