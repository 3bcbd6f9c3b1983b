"""The texts: documents of a file, a folder or Python's own help, split for validation, then cut into pieces.

A piece becomes one row of tokens. How many there are follows from the characters alone, so that every rank knows it
before a single token is made.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from samestep import UserError
from samestep.core.paths import expand_home
from samestep.data.data_file import DataFile
from samestep.data.prepared.split import ByDocument
from samestep.data.pydoc_topics import distinct, passages, pydoc_topics
from samestep.data.saved_datasets import dataset_files, is_saved_dataset
from samestep.data.table_files import EVERY_KIND, read_table
from samestep.data.text import existing_file
from samestep.recipes.lens.config import DataConfig

PLAIN = ".txt"
SHORTEST = 8
"""Characters of a piece at least; what is left over at the end of a document may have fewer, and is left out."""
Origin = DataFile | np.ndarray


@dataclass(frozen=True)
class Texts:
    """Pieces of text, each once, in two parts that have no document and no piece in common."""

    name: str
    train: Sequence[str]
    validation: Sequence[str]
    origins: Sequence[Origin]
    """Where they come from, for the comparison of a resumed run."""

    @property
    def pieces(self) -> list[str]:
        """All of them, those for training first."""
        return [*self.train, *self.validation]

    def digest(self) -> str:
        """A hash of all pieces."""
        found = hashlib.sha256()
        for piece in self.pieces:
            found.update(piece.encode() + b"\0")
        return found.hexdigest()


@lru_cache(maxsize=2)
def load_texts(config: DataConfig, seed: int, characters: int) -> Texts:
    """The texts that a configuration names, in pieces of at most so many characters."""
    name, documents, origins = _read(config)
    documents = list(dict.fromkeys(documents))[: config.limit]
    if len(documents) * config.validation_fraction < 1:  # too few to keep a whole one: the end of the text
        pieces = [piece for document in documents for piece in cut(document, characters)]
        edge = len(pieces) - max(1, round(len(pieces) * config.validation_fraction))
        train, validation = pieces[: max(edge, 0)], pieces[max(edge, 0) :]
    else:
        split = ByDocument(len(documents), config.validation_fraction, seed)
        parts: dict[str, list[str]] = {"train": [], "validation": []}
        for number, document in enumerate(documents):
            parts[split.region(number)].extend(cut(document, characters))
        train, validation = parts["train"], parts["validation"]
    train = list(dict.fromkeys(train))
    known = set(train)
    validation = [piece for piece in dict.fromkeys(validation) if piece not in known]
    if min(len(train), len(validation)) < 2:
        raise UserError(
            f"Give more text, or set activation_dumper.seq_len lower; {name} gives {len(train)} rows for training and "
            f"{len(validation)} for validation, and both need 2."
        )
    return Texts(name, train, validation, origins)


def cut(document: str, characters: int) -> Iterator[str]:
    """A document in pieces that end where a word does, if one does."""
    start = 0
    while start < len(document):
        stop = start + characters
        if stop < len(document):
            space = max(document.rfind(" ", start + 1, stop + 1), document.rfind("\n", start + 1, stop + 1))
            stop = space if space > start else stop
        if len(document[start:stop].strip()) >= SHORTEST:
            yield document[start:stop]
        start = stop


def _read(config: DataConfig) -> tuple[str, list[str], list[Origin]]:
    """Name, documents and origins."""
    if config.path is None:
        documents = list(distinct(passage for _, topic in pydoc_topics() for passage in passages(topic)))
        content = np.frombuffer("\0".join(documents).encode(), dtype=np.uint8)
        return "pydoc_data.topics", documents, [content]
    path = expand_home(config.path)
    if path.suffix.lower() == PLAIN:
        return config.path, [_plain_text(existing_file(config.path))], [DataFile(path)]
    table = read_table(config.path, EVERY_KIND, config.limit)
    rows = [table.texts(row, [config.text_field]) for row in table.rows]
    if config.text_field not in table.columns:
        raise UserError(
            f"Set data.text_field to the column with the text, one of {', '.join(table.columns)}; {config.path} has no "
            f"{config.text_field!r}."
        )
    table.check()
    files = dataset_files(path) if is_saved_dataset(path) else [path]
    return config.path, [row[config.text_field] for row in rows if row], [DataFile(file) for file in files]


def _plain_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"Save {file} as UTF-8; it is not.") from None
