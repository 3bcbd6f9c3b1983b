"""Pairs as rows of tensors for a feed, padded at their end."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from samestep.data.data_file import DataFile
from samestep.recipes.dpo.designs import Design
from samestep.recipes.dpo.protein_records import ProteinPair
from samestep.recipes.dpo.structures import LETTERS, UNKNOWN

CHAIN_STEP = 100
"""How far the residue numbers of a chain lie behind those of the chain before it."""
_NUMBERS = {letter: number for number, letter in enumerate(LETTERS)}
_NUMBER_OF_BYTE = np.array([_NUMBERS.get(chr(byte), -1) for byte in range(256)])

PAD: dict[str, float] = {
    "coordinates": 0.0,
    "resolved": False,
    "residue_index": 0,
    "chain": 0,
    "scored": False,
    "fixed": False,
    "native": _NUMBERS[UNKNOWN],
    "preferred": _NUMBERS[UNKNOWN],
    "unpreferred": _NUMBERS[UNKNOWN],
}
"""What a feed pads the rows with. Chains count from 1, so `chain > 0` is where a row has residues."""

MOST_KEPT = 4096
"""Rows that are kept once they are made: a GPU's step takes less time than to make 16 of them."""


class PairRows:
    """Pairs by index, as a feed reads them. File names and the like are in `pairs`."""

    pad = PAD

    def __init__(self, pairs: Sequence[ProteinPair], records_file: Path) -> None:
        self.pairs = list(pairs)
        self.lengths = [sum(map(len, pair.design.chains)) for pair in self.pairs]
        """Residues of each row, for `Bucketed`."""
        self._records_file = DataFile(records_file.resolve())
        self._kept: dict[int, dict[str, Tensor]] = {}

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if index in self._kept:
            return dict(self._kept[index])
        pair = self.pairs[index]
        row = design_row(pair.design)
        row["preferred"] = sequence_row(pair.design, pair.preferred)
        row["unpreferred"] = sequence_row(pair.design, pair.unpreferred)
        if len(self._kept) < MOST_KEPT:
            self._kept[index] = row
        return dict(row)

    def of_batch(self, ids: Tensor) -> list[ProteinPair]:
        """The pairs of the rows of a batch, by the `ids` that a feed gives it."""
        return [self.pairs[index] for index in ids[:, 1].tolist()]

    def origins(self) -> list[DataFile]:
        """The file of the records and all structure files, for the comparison of a resumed run."""
        files = {pair.file.resolve(): pair.design.structure.sha256 for pair in self.pairs}
        return [self._records_file, *(DataFile(file, sha256=sha256) for file, sha256 in sorted(files.items()))]


def design_row(design: Design) -> dict[str, Tensor]:
    """What a network is told about a design, residue by residue: design chains first, then fixed chains.

    `scored` is where log-probabilities count, `fixed` is where letters are given: fixed chains, and positions that are
    not mutable. Between two chains the residue numbers go on by `CHAIN_STEP`; pairs of different chains are a class of
    their own in the network, so the step itself does not count.
    """
    beside = np.zeros(sum(map(len, design.fixed_chains)), dtype=bool)
    return {
        "coordinates": torch.from_numpy(np.concatenate([chain.coordinates for chain in design.chains])),
        "resolved": torch.from_numpy(np.concatenate([chain.resolved for chain in design.chains])),
        "residue_index": torch.from_numpy(_residue_index(design)),
        "chain": torch.from_numpy(np.repeat(np.arange(len(design.chains)) + 1, list(map(len, design.chains)))),
        "scored": torch.from_numpy(np.concatenate([design.scored, beside])),
        "fixed": torch.from_numpy(np.concatenate([~design.mutable, ~beside])),
        "native": sequence_row(design, design.native),
    }


def sequence_row(design: Design, sequence: str) -> Tensor:
    """The numbers of a sequence of the design chains, followed by the native letters of the fixed chains."""
    letters = sequence + "".join(chain.letters for chain in design.fixed_chains)
    return torch.from_numpy(_NUMBER_OF_BYTE[np.frombuffer(letters.encode(), np.uint8)])


def _residue_index(design: Design) -> np.ndarray:
    parts: list[np.ndarray] = []
    start = 0
    for chain in design.chains:
        parts.append(chain.residue_index + start)
        start = int(parts[-1][-1]) + 1 + CHAIN_STEP
    return np.concatenate(parts)
