"""Records in JSON or JSONL files. Whatever is wrong with them is listed at once, or left out and counted."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from samestep import UserError
from samestep.data.text import JSONL, existing_file

FamilyName = Literal["protein", "text"]
SHOWN = 20
"""How many problems of a file are listed; of the others, the number is said."""
_COLUMNS: Mapping[str, FamilyName] = {"pdb_file": "protein", "prompt": "text", "chosen": "text", "rejected": "text"}


@dataclass(frozen=True)
class Record:
    """A record, and its number in its file, counted from 1."""

    number: int
    values: Mapping[str, Any]


@dataclass
class Problems:
    """What is wrong in a file, record by record."""

    file: Path
    found: dict[int, str] = field(default_factory=dict)

    def add(self, number: int, what: str) -> None:
        """A record cannot be used."""
        self.found[number] = what

    def check(self, skip_invalid: bool, kept: int) -> str:
        """Refuse the file, or say what was left out of it; empty if nothing was."""
        if not self.found:
            return ""
        if not skip_invalid:
            raise UserError(
                f"Fix {self.file}, or leave these records out with skip_invalid=true: {self._listed('; ')}."
            )
        if not kept:
            raise UserError(f"Give records that can be used; {self.file} has none: {self._listed('; ')}.")
        reasons = Counter(self.found.values()).most_common()
        why = ", ".join(f"{count} because: {what}" for what, count in reasons[:3])
        return f"{len(self.found)} records of {self.file} are left out ({why}{', ...' if len(reasons) > 3 else ''})"

    def _listed(self, separator: str) -> str:
        more = len(self.found) - SHOWN
        lines = [f"record {number}: {what}" for number, what in sorted(self.found.items())[:SHOWN]]
        return separator.join([*lines, *([f"and {more} more"] if more > 0 else [])])


def read_records(path: str) -> tuple[list[Record], Problems]:
    """The records of a file, and what is no record in it."""
    file = existing_file(path)
    problems = Problems(file)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"Save {file} as UTF-8; it is not at byte {error.start + 1}.") from None
    values = _lines(text, problems) if file.suffix.lower() in JSONL else _list(text, file)
    records = []
    for number, value in values:
        if isinstance(value, dict):
            records.append(Record(number, value))
        else:
            problems.add(number, f"it is a {type(value).__name__}, not an object such as {{...}}")
    if not records and not problems.found:
        raise UserError(f"Give a file with records; {file} has none.")
    return records, problems


def _lines(text: str, problems: Problems) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate((line for line in text.splitlines() if line.strip()), start=1):
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as error:
            problems.add(number, f"not JSON, {error.msg} at column {error.colno}")


def _list(text: str, file: Path) -> Iterator[tuple[int, Any]]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        hint = "; one record a line is a .jsonl file" if error.msg == "Extra data" else ""
        raise UserError(f"Fix {file}: not JSON, {error.msg} in line {error.lineno}{hint}.") from None
    if not isinstance(found, list):
        raise UserError(f"Make {file} a list of records, [{{...}}, ...]; it is a {type(found).__name__}.")
    yield from enumerate(found, start=1)


def family_of(path: str) -> FamilyName:
    """What kind of records a file holds, by their columns."""
    records, problems = read_records(path)
    for record in records:
        for column, family in _COLUMNS.items():
            if column in record.values:
                return family
    problems.check(skip_invalid=False, kept=0)
    raise UserError(
        f"Give {path} the columns pdb_file, preferred_seq, unpreferred_seq (proteins) or prompt, chosen, rejected "
        f"(texts); its first record has {', '.join(map(repr, records[0].values)) or 'none'}."
    )
