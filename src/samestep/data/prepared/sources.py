"""The text to prepare: local files, read piece by piece, so that memory stays small."""

import codecs
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.paths import expand_home
from samestep.data.text import JSONL, documents, existing_file, records

PLAIN = (".txt", ".md", ".text")
"""Files that are read from a folder, in addition to JSONL."""
_CHUNK = 1 << 16


@dataclass(frozen=True)
class TextSource:
    """A file to read, and what to call it."""

    file: Path
    name: str

    @property
    def is_jsonl(self) -> bool:
        """Whether each line is a record."""
        return self.file.suffix.lower() in JSONL

    def describe(self) -> dict[str, Any]:
        """Its name, size and hash, for the metadata."""
        with self.file.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"name": self.name, "bytes": self.file.stat().st_size, "sha256": digest}


@dataclass(frozen=True)
class Piece:
    """A part of a document that fits into memory."""

    document: int
    text: str
    last: bool
    """Whether it ends the document."""


def find_sources(names: Sequence[str]) -> list[TextSource]:
    """The named files; for a folder, all text and JSONL files in it and below."""
    found = [source for name in names for source in _inside(name)]
    twice = next((s.name for i, s in enumerate(found) if s.file in [other.file for other in found[:i]]), None)
    if twice is not None:
        raise UserError(f"Name {twice} once; its text would be both in training and in validation.")
    return found


def _inside(name: str) -> list[TextSource]:
    folder = expand_home(name)
    if not folder.is_dir():
        return [TextSource(existing_file(name).resolve(), name)]
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PLAIN + JSONL and path.is_file())
    if not files:
        raise UserError(f"Give a folder with {', '.join(PLAIN + JSONL)} files; {name} has none.")
    return [TextSource(existing_file(str(path)).resolve(), str(path)) for path in files]


def read_records(sources: Sequence[TextSource]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of JSONL files, each with its line and file."""
    for source in sources:
        yield from records(source.file)


def read_pieces(sources: Sequence[TextSource], field: str) -> Iterator[Piece]:
    """All documents in pieces: a plain file is a document, and so is each line of a JSONL file."""
    document = 0
    for source in sources:
        if source.is_jsonl:
            for text in documents(source.file, field):
                yield Piece(document, text.decode("utf-8"), last=True)
                document += 1
        else:
            yield from _pieces(source, document)
            document += 1


def _pieces(source: TextSource, document: int) -> Iterator[Piece]:
    rest = ""
    for text in _decoded(source):
        rest += text
        edge = edge_of(rest)
        yield Piece(document, rest[:edge], last=False)
        rest = rest[edge:]
    yield Piece(document, rest, last=True)


def _decoded(source: TextSource) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    with source.file.open("rb") as file:
        try:
            while chunk := file.read(_CHUNK):
                yield decoder.decode(chunk)
            yield decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            raise UserError(f"Save {source.name} as UTF-8 text; it is not.") from None


def edge_of(text: str) -> int:
    """Where to cut a text so that a tokenizer finds the same tokens as in the whole text.

    That is between a line end and a letter; in one endless line, before a space; else anywhere.
    """
    edge = text.rfind("\n") + 1
    while edge and (edge == len(text) or text[edge].isspace()):
        edge = text.rfind("\n", 0, edge - 1) + 1
    if not edge:
        edge = text.rfind(" ")
    return edge if edge > 0 else len(text)
