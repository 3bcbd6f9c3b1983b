"""Preference pairs for structures, from a JSON list or a JSONL file. Every record is checked before training.

    {"pdb_file": "1abc.pdb", "preferred_seq": "MKV...", "unpreferred_seq": "MAV...", "design_chains": ["A"]}

A path is looked for in the folder of the JSON file, then in the working directory. Optional fields are those of
`designs.choose_design`; others are ignored. A sequence is that of the design chains, in their order; "/" or ":" may
stand between chains.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from samestep import UserError
from samestep.recipes.dpo.designs import Design, DesignError, choose_design
from samestep.recipes.dpo.sequence_checks import SEPARATORS, Problems, check_pair, check_text
from samestep.recipes.dpo.structure_cache import read_structure
from samestep.recipes.dpo.structures import Structure

SHOWN = 20
"""How many problems are listed one by one; the others are counted by their kind."""
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
        why = ", ".join(f"{count} because of {about}" for about, count in self.left_out.items())
        return f"{len(self.pairs)} of {self.total} records of {self.file}" + (f"; left out: {why}" if why else "")


@dataclass(frozen=True)
class _Problem:
    record: int
    where: str
    about: str
    text: str


def read_records(path: str, options: RecordOptions) -> ProteinRecords:
    """Read and check every record of a file; the same on every rank."""
    file = Path(path).expanduser()
    reader = _Reader(file, options)
    records = list(_json_records(file))
    pairs = [reader.pair(number, where, value) for number, (where, value) in enumerate(records, start=1)]
    valid = tuple(pair for pair in pairs if pair)
    if reader.problems and not (options.skip_invalid and valid):
        raise UserError(_report(file, reader.problems, len(records), options.skip_invalid))
    firsts = {problem.record: problem.about for problem in reversed(reader.problems)}
    return ProteinRecords(file, valid, len(records), dict(sorted(Counter(firsts.values()).items())))


class _Reader:
    """Checks records one by one. A structure file is read once, however many records name it."""

    def __init__(self, file: Path, options: RecordOptions) -> None:
        self.problems: list[_Problem] = []
        self._folder, self._options = file.parent, options
        self._structures: dict[Path, Structure | UserError] = {}

    def pair(self, number: int, where: str, value: Any) -> ProteinPair | None:
        """The pair of a record; None if it has problems, which are kept."""
        found: Problems = []
        pair = self._checked(number, value, found) if isinstance(value, dict) else None
        if isinstance(value, _BadJson):
            found.append(("JSON", value.reason))
        elif not isinstance(value, dict):
            found.append(("JSON", "it is no JSON object; write one with pdb_file, preferred_seq and unpreferred_seq"))
        self.problems += [_Problem(number, where, *problem) for problem in found]
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
        places = [self._folder / Path(name).expanduser(), Path(name).expanduser()]
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            found.append(
                ("file", f"there is no file {name} in {self._folder.resolve()} or {Path.cwd()}; correct pdb_file")
            )
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
        size = sum(map(len, design.chains))
        if size > self._options.max_length:
            found.append(
                (
                    "max_length",
                    f"its chains have {size} residues, more than max_length={self._options.max_length}; raise "
                    "max_length, or name fewer chains",
                )
            )
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


def _nothing_scored(design: Design) -> str:
    if not design.mutable.any():
        return "no position is mutable; name some in mutable_positions or mutable_ranges, or leave both out for all"
    return (
        f"none of the {np.count_nonzero(design.mutable)} mutable positions has all of N, CA, C and O and is one of the "
        "20 amino acids; name other positions, or leave this record out"
    )


@dataclass(frozen=True)
class _BadJson:
    reason: str


def _json_records(file: Path) -> Iterator[tuple[str, Any]]:
    """The values of a JSON list, or of the lines of a JSONL file, with where each is."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise UserError(f"Give a JSON or JSONL file of records; {file} cannot be read: {problem.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"Give a JSON or JSONL file of records in UTF-8; {file} is not.") from None
    if text.lstrip().startswith("["):
        yield from ((f"record {number}", value) for number, value in enumerate(_json_list(text, file), start=1))
        return
    if not text.strip():
        raise UserError(f"Give a file with records; {file} is empty.")
    with suppress(ValueError, RecursionError):
        yield "record 1", json.loads(text)  # a single record, which may go over several lines
        return
    lines = [(line, content) for line, content in enumerate(text.split("\n"), start=1) if content.strip()]
    for number, (line, content) in enumerate(lines, start=1):
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as problem:
            value = _BadJson(f"it is not JSON ({problem}); write one record a line, or a list of records")
        yield f"record {number} (line {line})", value


def _json_list(text: str, file: Path) -> list[Any]:
    try:
        values: list[Any] = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"Fix {file}, which is no JSON list: {problem}.") from None
    if not values:
        raise UserError(f"Give a file with records; the list in {file} is empty.")
    return values


def _report(file: Path, problems: list[_Problem], total: int, skip_invalid: bool) -> str:
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
