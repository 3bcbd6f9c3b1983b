"""Passages of English documentation, each with its beginning as a prompt and what people wrote next: for gan.py.

    mkdir debs && (cd debs && apt-get download python3.11-doc postgresql-doc-15 sqlite3-doc git-doc linux-doc-6.1 \\
        debian-reference-en developers-reference libreoffice-help-en-us)
    python benchmarks/results/make_passages.py debs passages.jsonl.gz

No package is installed: `dpkg -x` unpacks each into a temporary folder. The parts (train, validation, judge, test) are
by document, a page of a manual, so no page is in two of them. A passage that repeats more than a quarter of another
one's runs of eight words is left out, so no part has near-duplicates of another.
"""

import argparse
import gzip
import hashlib
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

PARTS = (("train", 0.74), ("judge", 0.11), ("validation", 0.06), ("test", 0.09))
"""Shares of the documents."""
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
LARGEST = 400_000
"""Bytes of a page; larger ones are indexes, or all pages in one."""
_RUN = 8
_MOST_REPEATED = 0.25
BEGINNING = (100, 260)
"""Characters of a prompt: sentences are taken until there are so many, and it is left out if there are more."""
CONTINUATION = 480
"""Characters of the human text at least: some 100 tokens, of which 64 are used, so that it does not end in them."""


class Sections(HTMLParser):
    """The paragraphs of a page by section: what stands between two headings."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[str]]] = [("", [])]
        self._inside: str | None = None
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("p", *_HEADINGS):
            self._close()
            self._inside = tag
        elif tag in ("pre", "table", "li", "dl", "div"):
            self._close()

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._close()

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._text.append(data)

    def _close(self) -> None:
        text = " ".join("".join(self._text).replace("\u00b6", "").split())
        if self._inside in _HEADINGS and text:
            self.found.append((re.sub(r"^[\dA-Z]?[\d.]*\s+|#$", "", text), []))
        elif self._inside == "p" and text:
            self.found[-1][1].append(text)
        self._inside, self._text = None, []


def passages(page: str) -> Iterator[tuple[str, str, str]]:
    """Title, beginning and continuation of the passages of a page, which do not overlap."""
    reader = Sections()
    reader.feed(page)
    reader.close()
    for title, paragraphs in reader.found:
        sentences = [part for text in paragraphs if is_prose(text) for part in _END.split(text)]
        while sentences:
            beginning, sentences = take(sentences, BEGINNING[0])
            continuation, sentences = take(sentences, CONTINUATION)
            if title and len(beginning) <= BEGINNING[1] and len(continuation) >= CONTINUATION:
                yield title[:80], beginning, continuation[: CONTINUATION + 120]


def take(sentences: list[str], least: int) -> tuple[str, list[str]]:
    """Sentences of so many characters at least, and the rest."""
    taken, length = 0, 0
    while taken < len(sentences) and length < least:
        length += len(sentences[taken]) + 1
        taken += 1
    return " ".join(sentences[:taken]), sentences[taken:]


def is_prose(text: str) -> bool:
    """Whether a paragraph is sentences, and not code, a table or another language."""
    letters = sum(character.isascii() and (character.isalpha() or character in " ,.'-") for character in text)
    return text[0].isupper() and text[-1] in ".!?" and len(text) >= 40 and letters >= 0.93 * len(text)


class Known:
    """Which runs of words have been seen."""

    def __init__(self) -> None:
        self._runs: set[str] = set()

    def is_new(self, text: str) -> bool:
        """Whether most of a text has not been seen; it has then."""
        words = re.findall(r"\w+", text.lower())
        runs = [" ".join(words[start : start + _RUN]) for start in range(max(1, len(words) - _RUN + 1))]
        if sum(run in self._runs for run in runs) > _MOST_REPEATED * len(runs):
            return False
        self._runs.update(runs)
        return True


def part_of(document: str) -> str:
    """The part of a document, which follows from its name."""
    place = int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big") / 2**64
    for name, share in PARTS:
        place -= share
        if place < 0:
            return name
    return PARTS[-1][0]


def pages(packages: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each page of each package, in the order of their names."""
    for package in sorted(packages.glob("*.deb")):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["dpkg", "-x", str(package), folder], check=True)
            for file in sorted(Path(folder).rglob("*.html")):
                if file.is_file() and not file.is_symlink() and file.stat().st_size < LARGEST:
                    yield f"{package.name.split('_')[0]}/{file.name}", file.read_text("utf-8", errors="replace")


def main() -> None:
    """Write the file, and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path)
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    known, counts, documents = Known(), Counter[str](), set[str]()
    with gzip.GzipFile(args.file, "wb", mtime=0) as out:
        for document, page in pages(args.packages):
            for title, beginning, continuation in passages(page):
                if known.is_new(f"{beginning} {continuation}"):
                    part = part_of(document)
                    row = {"part": part, "document": document, "title": title}
                    row |= {"beginning": beginning, "continuation": continuation}
                    out.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
                    counts[part] += 1
                    counts[document.split("/")[0]] += 1
                    documents.add(document)
    print(f"{args.file}: {args.file.stat().st_size / 1e6:.1f} MB, {len(documents)} documents, {dict(counts)}")


if __name__ == "__main__":
    main()
