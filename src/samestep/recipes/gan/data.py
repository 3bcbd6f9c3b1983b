"""The training data: prompts, each with the text that a person wrote for it, from a file or from Python's own text."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from torch import Tensor

from samestep import UserError
from samestep.core.config.bounds import Bounds, Count, PartialShare
from samestep.core.config.checked import CheckedConfig
from samestep.core.paths import expand_home
from samestep.data.data_file import DataFile
from samestep.data.prepared.split import ByDocument
from samestep.data.pydoc_topics import distinct, passages, pydoc_topics
from samestep.data.table_files import read_table
from samestep.recipes.gan.domains import PYDOC, Domain, find_domain


@dataclass(frozen=True)
class DataConfig(CheckedConfig):
    """The training data."""

    path: str | None = None
    """A .csv or .jsonl file; null is the English text that comes with Python (`pydoc_data.topics`)."""
    domain: str | None = None
    """The kind of text, such as stories or proofs; null: found by the columns of the file."""
    min_story_length: Count = 1
    """Leave out human texts with fewer characters."""
    max_story_length: Count | None = None
    """Leave out human texts with more characters; null: none."""
    validation_fraction: PartialShare = 0.1
    """Share of the records that is kept for validation, chosen by the seed."""
    limit: Annotated[int, Bounds(least=2)] | None = None
    """Use only this many of the records that are left, from the beginning, for a quick trial; null is all of them."""

    def __post_init__(self) -> None:
        """Refuse lengths that no text has."""
        if self.max_story_length is not None and self.max_story_length < self.min_story_length:
            raise UserError(
                f"Set data.max_story_length to data.min_story_length={self.min_story_length} or more, or to null; it "
                f"is {self.max_story_length}."
            )


@dataclass(frozen=True)
class Record:
    """A prompt, and what a person wrote for it."""

    prompt: str
    human: str
    group: str


class TextRows:
    """Records by index, as a feed reads them; `of_batch` gives the texts of a batch."""

    def __init__(self, records: Sequence[Record], groups: Sequence[str], origin: DataFile | np.ndarray) -> None:
        self.records, self.groups = records, groups
        self._origin = origin

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        record = self.records[index]
        return {"prompt": record.prompt, "human": record.human, "group": self.groups.index(record.group)}

    def of_batch(self, ids: Tensor) -> list[Record]:
        """The records of the rows of a batch, by the `ids` that a feed gives it."""
        return [self.records[index] for index in ids[:, 1].tolist()]

    def origins(self) -> list[DataFile | np.ndarray]:
        """Where the texts come from, for the comparison of a resumed run."""
        return [self._origin]


@dataclass(frozen=True)
class Texts:
    """The data, in two parts that have no human text in common."""

    name: str
    """The file, or the name of the built-in text."""
    domain: Domain
    train: TextRows
    validation: TextRows
    selection: str
    """How many records there are, and why others were left out."""

    def describe(self) -> dict[str, str | int | dict[str, int]]:
        """The record of the data, with its hash: Python's text differs from version to version."""
        (origin,) = self.train.origins()
        content = hashlib.sha256(origin.tobytes()).hexdigest() if isinstance(origin, np.ndarray) else origin.sha256()
        return {
            "name": self.name,
            "domain": self.domain.name,
            "sha256": content,
            "train_rows": len(self.train),
            "validation_rows": len(self.validation),
            "groups": dict(sorted(Counter(r.group for r in (*self.train.records, *self.validation.records)).items())),
        }


def load(config: DataConfig, seed: int) -> Texts:
    """Read the data and split it; the same on every rank, since only the seed decides.

    A process reads it once for all stages, and again only if the file has changed.
    """
    return _load(config, seed, _version(config.path))


def _version(path: str | None) -> tuple[int, ...] | None:
    try:
        found = expand_home(path).stat() if path else None
    except OSError:  # which reading it explains
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found else None


@lru_cache(maxsize=1)
def _load(config: DataConfig, seed: int, version: tuple[int, ...] | None) -> Texts:
    origin: DataFile | np.ndarray
    if config.path is None:
        if config.domain not in (None, PYDOC.name):
            raise UserError(f"Name the file with data.path; data.domain={config.domain} is not that of Python's text.")
        name, domain, records = "pydoc_data.topics", PYDOC, list(_pydoc_records())
        origin = np.frombuffer("\0".join(r.prompt + r.human for r in records).encode("utf-8"), dtype=np.uint8)
    else:
        name = config.path
        domain, records, file = _read_records(config.path, config.domain)
        origin = DataFile(file.resolve())
    kept, selection = _select(records, config, f"{name} ({domain.name})")
    groups = sorted({record.group for record in kept})
    train, validation = (TextRows(part, groups, origin) for part in _split(kept, config.validation_fraction, seed))
    return Texts(name, domain, train, validation, selection)


def _read_records(path: str, domain_name: str | None) -> tuple[Domain, list[Record], Path]:
    table = read_table(path)
    domain = find_domain(table.columns, path, domain_name)
    texts = [table.texts(row, domain.columns) for row in table.rows]
    table.check()
    records = [Record(domain.prompt(row), row[domain.human_field], domain.group(row)) for row in texts if row]
    return domain, records, table.file


def _pydoc_records() -> Iterator[Record]:
    """Every paragraph of prose in Python's help, under its topic; code, grammar, headings and lists are left out."""
    topic_of: dict[str, str] = {}
    for topic, text in pydoc_topics():
        for passage in passages(text):
            topic_of.setdefault(passage, topic)
    for passage in distinct(iter(topic_of)):
        if passage[0].isalpha() and passage.endswith(".") and "::=" not in passage:
            row = {"title": topic_of[passage], "paragraph": " ".join(passage.split())}
            yield Record(PYDOC.prompt(row), row["paragraph"], PYDOC.group(row))


def _select(records: Sequence[Record], config: DataConfig, name: str) -> tuple[list[Record], str]:
    """The records whose human texts have the wanted length, and a sentence about it."""
    lengths = [len(record.human) for record in records]
    shortest, longest = config.min_story_length, config.max_story_length or max(lengths)
    fitting = [record for record, length in zip(records, lengths) if shortest <= length <= longest]
    kept = fitting[: config.limit]
    left_out = {
        f"shorter than {shortest} characters": sum(length < shortest for length in lengths),
        f"longer than {longest} characters": sum(length > longest for length in lengths),
        "beyond data.limit": len(fitting) - len(kept),
    }
    why = ", ".join(f"{count} {reason}" for reason, count in left_out.items() if count)
    sentence = f"{len(kept)} of {len(records)} records of {name}" + (f"; left out: {why}" if why else "")
    if len(kept) < 2:
        raise UserError(f"Give at least two records, or change data.min_story_length or max_story_length; {sentence}.")
    return kept, sentence


def _split(records: Sequence[Record], fraction: float, seed: int) -> tuple[list[Record], list[Record]]:
    """Records for training and for validation. Those with the same human text stay together."""
    numbers: dict[str, int] = {}
    documents = [numbers.setdefault(record.human, len(numbers)) for record in records]
    split = ByDocument(len(numbers), fraction, seed)
    parts: dict[str, list[Record]] = {"train": [], "validation": []}
    for record, document in zip(records, documents):
        parts[split.region(document)].append(record)
    return parts["train"], parts["validation"]
