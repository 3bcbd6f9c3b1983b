"""Values in a JSON list or a JSONL file."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.records import parse_json


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
    with suppress(ValueError):
        yield "record 1", parse_json(text)  # a single record, which may go over several lines
        return
    lines = [(line, content) for line, content in enumerate(text.split("\n"), start=1) if content.strip()]
    for number, (line, content) in enumerate(lines, start=1):
        try:
            value = parse_json(content)
        except ValueError as problem:
            value = BadJson(f"it is not JSON ({problem}); write one record a line, or a list of records")
        yield f"record {number} (line {line})", value


def _json_list(text: str, file: Path) -> list[Any]:
    try:
        values: list[Any] = parse_json(text)
    except ValueError as problem:
        raise UserError(f"Fix {file}, which is no JSON list: {problem}.") from None
    if not values:
        raise UserError(f"Give a file with records; the list in {file} is empty.")
    return values
