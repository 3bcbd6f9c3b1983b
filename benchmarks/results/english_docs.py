"""Some 27 MB of English documentation as records, one for each document:
`python benchmarks/results/english_docs.py english_docs.jsonl.xz`.

Downloads Debian packages (`apt-get download`, no root), takes headings and paragraphs out of their pages, and writes
{"document", "part", "text"}: a heading is a line that begins with `## `, paragraphs are apart by an empty line. Code,
navigation and paragraphs that came before in another document are left out. `part` is train, validation or test (80, 10
and 10%), by a hash of the text, so a document stays in its part whatever else is in the file. The versions that were
read are printed.
"""

import argparse
import gzip
import hashlib
import json
import lzma
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

PACKAGES = {
    "apache2-doc": "**/en/**/*.html",
    "debian-policy": "**/*.html",
    "debian-reference-en": "**/*.en.html",
    "developers-reference": "**/*.html",
    "dict-foldoc": "**/*.dict.dz",
    "git-doc": "**/*.html",
    "gnome-user-docs": "**/C/**/*.page",
    "libreoffice-help-en-us": "**/text/**/*.html",
    "linux-doc-6.1": "**/html/**/*.html",
    "perl-doc": "**/*.pod",
    "postgresql-doc-15": "**/*.html",
    "python-django-doc": "**/*.html",
    "python3.11-doc": "**/*.html",
    "r-doc-html": "**/*.html",
    "sqlite3-doc": "**/*.html",
}
"""Debian packages, and which of their files are read."""
LARGEST = 2_800_000
"""Characters of a package at most: without this half of the text would be about Linux."""
_BLOCKS = {"p", "li", "dd", "dt", "td", "th", "blockquote", "figcaption", "div", "section", "article", "body"}
_BLOCKS |= {"page", "note", "item", "table"}
_HEADINGS = frozenset(["h1", "h2", "h3", "h4", "h5", "h6"])
_SKIPPED = {"head", "script", "style", "nav", "header", "footer", "pre", "form", "select", "button", "svg", "info"}
_SKIPPED |= {"links", "screen", "code-block"}
_SKIPPED_CLASSES = re.compile(r"sphinxsidebar|navheader|navfooter|\brelated\b|\btoc\b|headerlink|\bsig\b|breadcrumb")
_VOID = frozenset(["br", "hr", "img", "input", "meta", "link", "col", "area", "base", "embed", "source", "wbr"])
_NUMBER = re.compile(r"^((chapter|appendix|section)\s+)?([0-9A-Z]{1,3}\.)+([0-9]+\.?)*\s+", re.IGNORECASE)
Part = tuple[bool, str]
"""Whether it is a heading, and its text."""


class PageText(HTMLParser):
    """Headings and paragraphs of a page, HTML or Mallard."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[Part] = []
        self._words: list[str] = []
        self._heading = False
        self._skipped, self._depth = "", 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped:
            self._depth += tag == self._skipped
            return
        classes = dict(attrs).get("class") or ""
        if tag not in _VOID and (tag in _SKIPPED or _SKIPPED_CLASSES.search(classes)):
            self._skipped, self._depth = tag, 1
        elif tag in _BLOCKS or tag in _HEADINGS or tag == "title":
            self._end()
            self._heading = tag in _HEADINGS or tag == "title"
        elif tag == "br":
            self._words.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            self._depth -= tag == self._skipped
            self._skipped = self._skipped if self._depth else ""
        elif tag in _BLOCKS or tag in _HEADINGS or tag == "title":
            self._end()

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self._words.append(data)

    def _end(self) -> None:
        text = " ".join("".join(self._words).replace("¶", " ").split())
        if text:
            self.parts.append((self._heading, _NUMBER.sub("", text) if self._heading else text))
        self._words, self._heading = [], False


def of_page(text: str) -> list[Part]:
    reader = PageText()
    reader.feed(text)
    reader.close()
    return reader.parts


def of_pod(text: str) -> list[Part]:
    """Perl's own format: a line that begins with `=` is a command, an indented paragraph is code."""
    found: list[Part] = []
    for block in re.split(r"\n\s*\n", text):
        if block.startswith("=head"):
            found.append((True, _plain_pod(block.split(None, 1)[1]) if " " in block else ""))
        elif block[:1] not in ("=", " ", "\t", ""):
            found.append((False, _plain_pod(block)))
    return [part for part in found if part[1]]


def _plain_pod(text: str) -> str:
    for _ in range(3):  # nested marks
        text = re.sub(r"[A-Z]<(?:<+ )?([^<>|]*\|)?([^<>]*?)(?: >+)?>", r"\2", text)
    return " ".join(text.split())


def of_dictionary(text: str) -> Iterator[tuple[str, list[Part]]]:
    """The entries of FOLDOC: a headword at the beginning of a line, its definition indented."""
    for entry in re.split(r"\n(?=\S)", text):
        head, _, body = entry.partition("\n")
        paragraphs = [" ".join(block.replace("{", "").replace("}", "").split()) for block in body.split("\n\n")]
        yield head, [(True, head.strip()), *((False, paragraph) for paragraph in paragraphs if paragraph)]


def documents(folder: Path, package: str) -> Iterator[tuple[str, list[Part]]]:
    """The name of each document of a package, and what it has."""
    for path in sorted(folder.glob(PACKAGES[package])):
        if path.is_symlink() or not path.is_file():
            continue
        name = f"{package}/{path.relative_to(folder)}".replace("/usr/share/", "/")
        if path.suffix == ".dz":
            text = gzip.decompress(path.read_bytes()).decode(errors="replace")
            yield from ((f"{name}#{head}", parts) for head, parts in of_dictionary(text))
        else:
            read = of_pod if path.suffix == ".pod" else of_page
            yield name, read(path.read_text(errors="replace"))


def cleaned(parts: list[Part], seen: set[bytes]) -> str:
    """The text of a document, without what is not prose and paragraphs that were `seen`; a heading that nothing
    follows is left out too."""
    kept: list[Part] = []
    for is_heading, text in parts:
        if is_heading:
            if kept and kept[-1][0]:
                kept.pop()
            kept.append((True, text))
            continue
        key = hashlib.blake2b(text.lower().encode(), digest_size=12).digest()
        letters = sum(sign.isalpha() or sign == " " for sign in text)
        if key not in seen and len(text.split()) >= 5 and letters > 0.8 * len(text):
            seen.add(key)
            kept.append((False, text))
    if kept and kept[-1][0]:
        kept.pop()
    return "\n\n".join(f"## {text}" if is_heading else text for is_heading, text in kept)


def part_of(text: str) -> str:
    """Train, validation or test, by the text itself."""
    place = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") % 10
    return {0: "validation", 1: "test"}.get(place, "train")


def records(folder: Path) -> Iterator[dict[str, str]]:
    """Of all packages, which lie in folders of their names."""
    seen: set[bytes] = set()
    for package in PACKAGES:
        found = []
        for name, parts in documents(folder / package, package):
            text = cleaned(parts, seen)
            if len(text) >= 200:
                found.append({"document": name, "part": part_of(text), "text": text})
        # A package that is too large loses documents that a hash of their names chooses.
        found.sort(key=lambda record: hashlib.blake2b(record["document"].encode()).digest())
        size, kept = 0, []
        for record in found:
            size += len(record["text"])
            if size > LARGEST:
                break
            kept.append(record)
        print(f"{package}: {len(kept):,} of {len(found):,} documents, {min(size, LARGEST):,} characters", flush=True)
        yield from kept


def download(folder: Path) -> None:
    """Every package, unpacked into a folder of its name."""
    subprocess.run(["apt-get", "download", "-q", *PACKAGES], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    for path in sorted(folder.glob("*.deb")):
        print(path.name, flush=True)
        subprocess.run(["dpkg-deb", "-x", path, folder / path.name.split("_")[0]], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a .jsonl or .jsonl.xz to write")
    parser.add_argument("--folder", type=Path, help="packages that are unpacked already, in folders of their names")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if options.folder is None:
            download(folder)
        found = sorted(records(folder), key=lambda record: record["document"])
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in found)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    options.out.write_bytes(lzma.compress(data) if options.out.suffix == ".xz" else data)
    for part in ("train", "validation", "test"):
        own = [len(record["text"]) for record in found if record["part"] == part]
        print(f"{part}: {len(own):,} documents, {sum(own):,} characters")
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
