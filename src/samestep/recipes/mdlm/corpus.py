"""The text to learn from: a local file, or the English reference text inside every Python."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from samestep.core.errors import UserError
from samestep.data import text
from samestep.data.vocabulary import BYTES
from samestep.recipes.mdlm.windows import Windows

LONGEST_REPEAT = 80
"""A passage that shares a run of this many characters with an earlier one is a repetition of it."""


@dataclass(frozen=True)
class DataConfig:
    """What to learn from."""

    path: str | None = None
    """A local text or JSONL file; null is the English text that comes with Python (`pydoc_data.topics`)."""
    field: str = "text"
    """Where a line of a JSONL file holds its text."""
    sequence_length: int = 128
    """Tokens (bytes) in a row."""
    validation_fraction: float = 0.1
    """Share of the text, at its end, that is kept for validation."""
    limit: int | None = None
    """Use only so many tokens from the beginning of the text, for a quick trial; null is all of it."""

    def __post_init__(self) -> None:
        """Refuse what cannot be cut into rows."""
        if self.sequence_length < 1:
            raise UserError(f"Set data.sequence_length to 1 or more; it is {self.sequence_length}.")
        if not 0 < self.validation_fraction < 1:
            raise UserError(f"Set data.validation_fraction between 0 and 1; it is {self.validation_fraction}.")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"Set data.limit to 1 or more, or to null; it is {self.limit}.")


@dataclass(frozen=True)
class Corpus:
    """Text cut into a training and a validation region, and those into rows."""

    name: str
    """The file, or the Python whose text it is."""
    tokens: text.Tokens
    """The whole text."""
    train: Windows
    """Rows of the first region."""
    validation: Windows
    """Rows of the region behind it."""

    def describe(self) -> dict[str, str | int]:
        """What to record of a corpus, its hash included: Python's text differs from version to version."""
        return {
            "name": self.name,
            "sha256": text.fingerprint(self.tokens),
            "tokens": len(self.tokens),
            "train_tokens": len(self.train.tokens),
            "train_rows": len(self.train),
            "validation_tokens": len(self.validation.tokens),
            "validation_rows": len(self.validation),
        }


def load(config: DataConfig, cache: Path | None = None) -> Corpus:
    """Open the corpus that the configuration names; the same on every rank, and free of any random choice.

    `cache` is a folder in which an unpacked JSONL file may be kept.
    """
    tokens: text.Tokens
    if config.path is None:
        name, tokens = "pydoc_data.topics", np.frombuffer(pydoc_text(config.limit).encode("utf-8"), dtype=np.uint8)
    else:
        name = config.path
        tokens = text.open_text(config.path, field=config.field, separator=BYTES.eos, cache=cache)
    if config.limit is not None:
        tokens = text.part(tokens, 0, config.limit)
    train, validation = text.split(tokens, config.validation_fraction)
    length = config.sequence_length
    if len(train) < length or not len(validation):
        raise UserError(
            f"Give a longer text, or a smaller data.sequence_length than {length}; {name} has {len(tokens)} tokens, "
            f"of which {len(train)} are for training and {len(validation)} for validation."
        )
    return Corpus(name, tokens, Windows(train, length, BYTES.eos), Windows(validation, length, BYTES.eos))


def pydoc_text(limit: int | None = None) -> str:
    """The topics of Python's built-in help in alphabetical order, each passage once, until `limit` is reached."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError("Give a text file with data.path; this Python comes without pydoc_data.topics.") from None
    kept: list[str] = []
    size = 0
    for passage in distinct(passage for topic in sorted(topics) for passage in passages(topics[topic])):
        kept.append(passage)
        size += len(passage)
        if limit is not None and size >= limit:
            break
    return "\n\n".join(kept) + "\n"


def passages(topic: str) -> Iterator[str]:
    """The parts of a topic that empty lines separate."""
    for passage in re.split(r"\n(?:[ \t]*\n)+", topic):
        if passage.strip():
            yield passage.strip("\n").rstrip()


def distinct(passages: Iterator[str]) -> Iterator[str]:
    """Leave out passages that were there before, in whole or in a long run, however they were indented or wrapped.

    Topics quote each other, and a text that stands in both regions would make the validation figure worthless.
    """
    whole: set[str] = set()
    runs: set[str] = set()
    for passage in passages:
        flat = " ".join(passage.split())
        here = {flat[i : i + LONGEST_REPEAT] for i in range(len(flat) - LONGEST_REPEAT + 1)}
        if flat in whole or not runs.isdisjoint(here):
            continue
        whole.add(flat)
        runs |= here
        yield passage
