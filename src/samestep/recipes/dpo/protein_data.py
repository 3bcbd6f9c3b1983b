"""Preference pairs for structures: every record is checked, and becomes a row.

    {"pdb_file": "1abc.pdb", "preferred_seq": "MKV...", "unpreferred_seq": "MAV...", "design_chains": ["A"]}

A path is looked for in the folder of the records, then in the working directory. Optional fields are those of
`designs.choose_design`; others are named, and not used. A sequence is that of the design chains, in their order; "/" or
":" may stand between chains.
"""

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep import UserError
from samestep.core.paths import expand_home
from samestep.data.data_file import DataFile
from samestep.data.records.reading import Records, is_near
from samestep.data.records.too_long import LengthLimit, TooLong
from samestep.recipes.dpo.designs import (
    SEPARATORS,
    Design,
    DesignError,
    Problems,
    check_text,
    choose_design,
    length_problem,
    pair_problems,
)
from samestep.recipes.dpo.families import Division, Keys, Origins, ReadPairs
from samestep.recipes.dpo.structures import LETTERS, UNKNOWN, Chain, Structure, read_structure

SEQUENCES = ("preferred_seq", "unpreferred_seq")
REQUIRED = ("pdb_file", *SEQUENCES)
OPTIONAL = ("chain_id", "design_chains", "fixed_chains", "mutable_positions", "mutable_ranges")
_NOT_OURS = {
    "fixed_positions": ("mutable_positions", "mutable_ranges"),
    "chains": ("design_chains", "chain_id"),
}
"""Fields that other programs have, or nearly these names, and which of ours say the same or its opposite."""
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


@dataclass(frozen=True, eq=False)
class ProteinPair:
    """A design, and the two sequences that are compared; one letter for each residue of the design chains."""

    number: int
    """The record's number in its file, from 1."""
    file: Path
    design: Design
    preferred: str
    unpreferred: str

    def identity(self) -> str:
        """Equal for records that say the same, wherever they and their structure files are."""
        text = f"{self.design.identity()} {self.preferred} {self.unpreferred}"
        return hashlib.sha256(text.encode()).hexdigest()


def read_pairs(
    records: Records,
    max_length: int,
    skip_invalid: bool = False,
    cache: Path | None = None,
    too_long: TooLong = "refuse",
) -> ReadPairs[ProteinPair]:
    """Check every record; the same on every rank. A record's chains may have `max_length` residues together; parsed
    structures are kept in the folder `cache`."""
    records.expect((*REQUIRED, *OPTIONAL), lists=OPTIONAL)
    limit = LengthLimit(max_length, too_long, "residues", "pairs")
    reader, sources = _Reader(limit, cache), dict[int, int]()
    pairs = []
    for row in records.rows:
        found: Problems = []
        folder = (row.file or records.files[0]).parent
        pair = reader.pair(row.number, row.values, folder, found)
        sources[row.number] = row.source
        for about, text in found:
            records.refuse(row, text, about)
        pairs += [pair] if pair and not found else []
    records.check(skip_invalid)
    limit.say(records.path)
    return ReadPairs(pairs, records.origins(), records, sources)


class _Reader:
    """Checks records one by one. A structure file is read once, however many records name it."""

    def __init__(self, limit: LengthLimit, cache: Path | None) -> None:
        self._limit, self._cache = limit, cache
        self._structures: dict[Path, Structure | str] = {}
        self._chains: dict[Hashable, tuple[Chain, ...]] = {}

    def pair(self, number: int, value: Mapping[str, Any], folder: Path, found: Problems) -> ProteinPair | None:
        """The pair of a record, whose files may be named from `folder`; what is wrong with it is added to `found`."""
        most = self._limit.limit
        found += _fields_of_others(value)
        texts = {name: check_text(name, value.get(name), found) for name in SEQUENCES}
        try:
            file = _find_file(value.get("pdb_file"), folder)
            design = choose_design(self._structure(file), value)
        except DesignError as problem:
            found.append((problem.about, str(problem)))
            return None
        keeps = self._limit.keeps(design.length, lambda _: found.append(("max_length", length_problem(design, most))))
        if not keeps and self._limit.too_long == "drop":
            return None
        if not design.scored.any():
            found.append(("positions", _nothing_scored(design)))
        sequences = {name: text for name, text in texts.items() if text is not None}
        if len(sequences) < len(texts):
            return None
        found += pair_problems(sequences, design)
        letters = ["".join(letter for letter in text if letter not in SEPARATORS) for text in sequences.values()]
        return ProteinPair(number, file, design, *letters)

    def _structure(self, file: Path) -> Structure:
        file = file.resolve()
        if file not in self._structures:
            try:
                self._structures[file] = self._kept_once(read_structure(file, self._cache))
            except UserError as problem:
                self._structures[file] = str(problem).rstrip(".")
        found = self._structures[file]
        if isinstance(found, str):
            raise DesignError("structure", found)
        return found

    def _kept_once(self, structure: Structure) -> Structure:
        """The structure, with the chains of one that is the same but for its file."""
        named = tuple(chain.names for chain in structure.chains)  # their order and numbers are no part of the content
        return replace(structure, chains=self._chains.setdefault((structure.content, named), structure.chains))


def _find_file(name: Any, folder: Path) -> Path:
    """The file that a record names, in the folder of the records or in the working directory."""
    if not isinstance(name, str) or not name.strip():
        raise DesignError("file", "pdb_file is missing; name a structure file")
    with suppress(OSError, UserError):  # a name too long, a folder of others; ~ of an unknown user
        path = expand_home(name)
        for place in (folder / path, path):
            if place.is_file():
                return place
    folders = dict.fromkeys((folder.resolve(), Path.cwd()))
    raise DesignError("file", f"there is no file {name} in {' or '.join(map(str, folders))}; correct pdb_file")


def _fields_of_others(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Fields that other programs read, where ours do not say it: what is wrong with them."""
    for name in (name for name, value in record.items() if value and name not in (*REQUIRED, *OPTIONAL)):
        for theirs, ours in _NOT_OURS.items():
            if is_near(name, theirs) and not any(map(record.get, ours)):
                instead = f"write {ours[0]!r}, or set data.columns.{ours[0]}={name}"
                if theirs == "fixed_positions":
                    instead = f"name the positions that may change, in {' or '.join(map(repr, ours))}"
                yield "columns", f"the column {name!r} is not known; {instead}"
                break


def _nothing_scored(design: Design) -> str:
    if not design.mutable.any():
        return "no position is mutable; name some in mutable_positions or mutable_ranges, or leave both out for all"
    return (
        f"none of the {np.count_nonzero(design.mutable)} mutable positions has all of N, CA, C and O and is one of the "
        "20 amino acids; name other positions, or leave this record out"
    )


class ProteinRows:
    """Pairs by index, as a feed reads them. Decoding orders follow from `record`, a number of their own."""

    def __init__(self, pairs: Sequence[ProteinPair], records_files: Origins) -> None:
        self.pairs = list(pairs)
        self.lengths = [pair.design.length for pair in self.pairs]
        self._records = torch.tensor([int(pair.identity()[:15], 16) for pair in pairs], dtype=torch.int64)
        self._records_files = records_files
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
        row["record"] = self._records[index]
        if len(self._kept) < MOST_KEPT:
            self._kept[index] = row
        return dict(row)

    def origins(self) -> Origins:
        """The files of the records and all structure files."""
        files = {pair.file.resolve(): pair.design.structure.sha256 for pair in self.pairs}
        return [*self._records_files, *(DataFile(file, sha256=sha256) for file, sha256 in sorted(files.items()))]


divide_proteins = Division(
    lambda pair: Keys(pair.identity(), pair.design.structure.content, pair.preferred),
    ProteinRows,
    ("structure", "preferred sequence"),
)


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
