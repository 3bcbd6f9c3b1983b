"""Records in a JSON list or a JSONL file. Whatever is wrong with them is listed at once, or left out and counted."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from samestep import UserError

FamilyName = Literal["protein", "text"]
SHOWN = 20
"""How many problems are listed one by one; the others are counted by their kind."""
_COLUMNS: Mapping[str, FamilyName] = {"pdb_file": "protein", "prompt": "text", "chosen": "text", "rejected": "text"}


@dataclass(frozen=True)
class Problem:
    """What is wrong with a record."""

    record: int
    """The record's number in its file, from 1."""
    where: str
    about: str
    text: str


@dataclass(frozen=True)
class BadJson:
    """A line that is no record."""

    reason: str


def json_records(file: Path) -> Iterator[tuple[str, Any]]:
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
            value = BadJson(f"it is not JSON ({problem}); write one record a line, or a list of records")
        yield f"record {number} (line {line})", value


def _json_list(text: str, file: Path) -> list[Any]:
    try:
        values: list[Any] = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"Fix {file}, which is no JSON list: {problem}.") from None
    if not values:
        raise UserError(f"Give a file with records; the list in {file} is empty.")
    return values


def leave_out(file: Path, problems: Sequence[Problem], total: int, valid: int, skip_invalid: bool) -> dict[str, int]:
    """Refuse a file with problems, or count the records that are left out, each by its first problem."""
    if problems and not (skip_invalid and valid):
        raise UserError(_report(file, problems, total, skip_invalid))
    firsts = {problem.record: problem.about for problem in reversed(problems)}
    return dict(sorted(Counter(firsts.values()).items()))


def selection(file: Path, kept: int, total: int, left_out: Mapping[str, int]) -> str:
    """How many records there are, and why others were left out."""
    why = ", ".join(f"{count} because of {about}" for about, count in left_out.items())
    return f"{kept} of {total} records of {file}" + (f"; left out: {why}" if why else "")


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


def family_of(path: str) -> FamilyName:
    """What kind of records a file holds, by the columns of the first one that has any of them."""
    file = Path(path).expanduser()
    columns = [list(value) for _, value in json_records(file) if isinstance(value, dict)]
    for column in (name for names in columns for name in names):
        if column in _COLUMNS:
            return _COLUMNS[column]
    raise UserError(
        f"Give {path} the columns pdb_file, preferred_seq, unpreferred_seq (proteins) or prompt, chosen, rejected "
        f"(texts); its first record has {', '.join(map(repr, columns[0])) if columns else 'none'}."
    )
