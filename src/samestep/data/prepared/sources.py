"""The text to prepare: local files, read piece by piece, so that memory stays small."""

import codecs
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.paths import expand_home
from samestep.data.records.arrow import is_saved_dataset
from samestep.data.records.hub import hub_dataset
from samestep.data.records.lines import is_record_file
from samestep.data.records.reading import Records
from samestep.data.text import documents_by_path, plain_file

PLAIN = (".txt", ".md", ".text")
"""Files that are read from a folder, in addition to records."""
_CHUNK = 1 << 16


@dataclass(frozen=True)
class TextSource:
    """A file of text or a path with records to read, and what to call it."""

    path: Path
    name: str
    records: Records | None = None

    @property
    def files(self) -> list[Path]:
        return self.records.files if self.records else [self.path]

    def describe(self) -> dict[str, Any]:
        """Its name, size and hash, for the metadata."""
        digests = []
        for path in self.files:
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        digest = digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()
        return {"name": self.name, "bytes": sum(path.stat().st_size for path in self.files), "sha256": digest}


@dataclass(frozen=True)
class Piece:
    """A part of a document that fits into memory."""

    document: int
    text: str
    last: bool
    """Whether it ends the document."""
    path: int = 0
    """Which of the paths of its records it is from."""


def find_sources(names: Sequence[str], columns: Mapping[str, str] | None = None) -> list[TextSource]:
    """The named files and saved datasets; for a folder, all files of text and of records in it and below."""
    found = [source for name in names for source in _inside(name, columns)]
    twice = next((s.name for i, s in enumerate(found) if s.path in [other.path for other in found[:i]]), None)
    if twice is not None:
        raise UserError(f"Name {twice} once; its text would be both in training and in validation.")
    return found


def _inside(name: str, columns: Mapping[str, str] | None) -> list[TextSource]:
    path = expand_home(name)
    if not path.is_dir() or is_saved_dataset(path):
        return [_source(path, name, columns)]
    files = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in PLAIN or is_record_file(file)]
    if not files:
        raise UserError(f"Give a folder with text files ({', '.join(PLAIN)}) or records; {name} has none.")
    return [_source(file, str(file), columns) for file in files if file.is_file()]


def _source(path: Path, name: str, columns: Mapping[str, str] | None) -> TextSource:
    if path.is_dir() or is_record_file(path) or hub_dataset(name) is not None:
        return TextSource(path.resolve(), name, Records(name, columns, section=""))
    return TextSource(plain_file(name).resolve(), name)


def read_pieces(sources: Sequence[TextSource], skip_invalid: bool) -> Iterator[Piece]:
    """All documents in pieces: a plain file is a document, and so is each record."""
    document = 0
    for source in sources:
        if source.records is not None:
            for path, text in documents_by_path(source.records, skip_invalid):
                yield Piece(document, text, last=True, path=path)
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
    with source.path.open("rb") as file:
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
