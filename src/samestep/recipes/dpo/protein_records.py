"""Preference pairs for structures, from a JSON list or a JSONL file. Every record is checked before training.

    {"pdb_file": "1abc.pdb", "preferred_seq": "MKV...", "unpreferred_seq": "MAV...", "design_chains": ["A"]}

A path is looked for in the folder of the JSON file, then in the working directory. Optional fields are those of
`designs.choose_design`; others are ignored. A sequence is that of the design chains, in their order; "/" or ":" may
stand between chains.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from samestep import UserError
from samestep.core.paths import expand_home
from samestep.data.json_records import BadJson, json_records
from samestep.recipes.dpo.designs import Design, DesignError, check_length, choose_design
from samestep.recipes.dpo.record_files import Problem, leave_out, selection
from samestep.recipes.dpo.sequence_checks import SEPARATORS, Problems, check_pair, check_text
from samestep.recipes.dpo.structure_cache import read_structure
from samestep.recipes.dpo.structures import Structure

SEQUENCES = ("preferred_seq", "unpreferred_seq")


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


@dataclass(frozen=True)
class RecordOptions:
    """How records are read."""

    max_length: int
    """The most residues that a record's chains may have together."""
    skip_invalid: bool = False
    """Leave out records with problems, instead of refusing the file."""
    cache: Path | None = None
    """The folder in which parsed structures are kept."""
    limit: int | None = None
    """Look at only so many records, from the beginning of the file; None: all."""


@dataclass(frozen=True)
class ProteinRecords:
    """The records of a file that can be trained on."""

    file: Path
    pairs: tuple[ProteinPair, ...]
    total: int
    left_out: dict[str, int] = field(default_factory=dict)
    """How many records were left out because of what; a record counts by its first problem."""

    def selection(self) -> str:
        """How many records there are, and why others were left out."""
        return selection(self.file, len(self.pairs), self.total, self.left_out)


def read_records(path: str, options: RecordOptions) -> ProteinRecords:
    """Read and check every record of a file; the same on every rank."""
    file = expand_home(path)
    reader = _Reader(file, options)
    records = list(json_records(file))[: options.limit]
    pairs = [reader.pair(number, where, value) for number, (where, value) in enumerate(records, start=1)]
    valid = tuple(pair for pair in pairs if pair)
    left_out = leave_out(file, reader.problems, len(records), len(valid), options.skip_invalid)
    return ProteinRecords(file, valid, len(records), left_out)


class _Reader:
    """Checks records one by one. A structure file is read once, however many records name it."""

    def __init__(self, file: Path, options: RecordOptions) -> None:
        self.problems: list[Problem] = []
        self._folder, self._options = file.parent, options
        self._structures: dict[Path, Structure | UserError] = {}

    def pair(self, number: int, where: str, value: Any) -> ProteinPair | None:
        """The pair of a record; None if it has problems, which are kept."""
        found: Problems = []
        pair = self._checked(number, value, found) if isinstance(value, dict) else None
        if isinstance(value, BadJson):
            found.append(("JSON", value.reason))
        elif not isinstance(value, dict):
            found.append(("JSON", "it is no JSON object; write one with pdb_file, preferred_seq and unpreferred_seq"))
        self.problems += [Problem(number, where, *problem) for problem in found]
        return None if found else pair

    def _checked(self, number: int, value: Mapping[str, Any], found: Problems) -> ProteinPair | None:
        texts = {name: check_text(name, value.get(name), found) for name in SEQUENCES}
        file, design = self._design(value, found)
        if file is None or design is None or None in texts.values():
            return None
        check_pair(texts, design, found)
        sequences = ["".join(letter for letter in text or "" if letter not in SEPARATORS) for text in texts.values()]
        return ProteinPair(number, file, design, *sequences)

    def _design(self, value: Mapping[str, Any], found: Problems) -> tuple[Path | None, Design | None]:
        name = value.get("pdb_file")
        if not isinstance(name, str) or not name.strip():
            found.append(("file", "pdb_file is missing; name a structure file"))
            return None, None
        file = _find(name, self._folder)
        if file is None:
            folders = dict.fromkeys((self._folder.resolve(), Path.cwd()))
            found.append(("file", f"there is no file {name} in {' or '.join(map(str, folders))}; correct pdb_file"))
            return None, None
        structure = self._structure(file)
        if isinstance(structure, UserError):
            found.append(("structure", str(structure).rstrip(".")))
            return file, None
        try:
            design = choose_design(structure, value)
        except DesignError as problem:
            found.append((problem.about, str(problem)))
            return file, None
        self._check_size(design, found)
        return file, design

    def _check_size(self, design: Design, found: Problems) -> None:
        try:
            check_length(design, self._options.max_length)
        except DesignError as problem:
            found.append((problem.about, str(problem)))
        if not design.scored.any():
            found.append(("positions", _nothing_scored(design)))

    def _structure(self, file: Path) -> Structure | UserError:
        file = file.resolve()
        if file not in self._structures:
            try:
                self._structures[file] = read_structure(file, self._options.cache)
            except UserError as problem:
                self._structures[file] = problem
        return self._structures[file]


def _find(name: str, folder: Path) -> Path | None:
    """The file that a record names; None if there is none, or it cannot be looked for."""
    with suppress(OSError, UserError):  # a name too long, a folder of others; ~ of an unknown user
        path = expand_home(name)
        return next((place for place in (folder / path, path) if place.is_file()), None)
    return None


def _nothing_scored(design: Design) -> str:
    if not design.mutable.any():
        return "no position is mutable; name some in mutable_positions or mutable_ranges, or leave both out for all"
    return (
        f"none of the {np.count_nonzero(design.mutable)} mutable positions has all of N, CA, C and O and is one of the "
        "20 amino acids; name other positions, or leave this record out"
    )
