"""The text to learn from: a prepared folder, a local file, or the English reference text inside every Python."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from samestep.core.errors import UserError
from samestep.data import text
from samestep.data.prepared import METADATA, TOKENIZER_FOLDER, Prepared, is_prepared, open_prepared
from samestep.data.prepared.chats import Message, Row, answers
from samestep.data.tokenizer import load_tokenizer, read_tokenizer
from samestep.data.tokenizer.vocabulary import BYTES, ByteTokenizer, Tokenizer, read_record
from samestep.recipes.mdlm.older_data import Older, is_older, open_older
from samestep.recipes.mdlm.rows import Answers, Rows, WholeRows, Windows

LONGEST_REPEAT = 80
"""A passage that shares a run of this many characters with an earlier one is a repetition of it."""
USUAL_LENGTH = 128
"""Tokens in a row of a text that nobody said otherwise of."""


@dataclass(frozen=True)
class DataConfig:
    """What to learn from."""

    path: str | None = None
    """A folder that `samestep data prepare` wrote, or a local text or JSONL file, read as bytes; null is the English
    text that comes with Python (`pydoc_data.topics`)."""
    field: str = "text"
    """Where a line of a JSONL file holds its text."""
    sequence_length: int | None = None
    """Tokens in a row of running text; null is what the prepared folder says, or 128. Chats and older folders have
    rows of their own length."""
    validation_fraction: float = 0.1
    """Share of a text file, at its end, that is kept for validation; a prepared folder has its own."""
    limit: int | None = None
    """Use only so many tokens, from the beginning, for a quick trial; null is all of them."""

    def __post_init__(self) -> None:
        """Refuse what cannot be cut into rows."""
        if self.sequence_length is not None and self.sequence_length < 1:
            raise UserError(f"Set data.sequence_length to 1 or more; it is {self.sequence_length}.")
        if not 0 < self.validation_fraction < 1:
            raise UserError(f"Set data.validation_fraction between 0 and 1; it is {self.validation_fraction}.")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"Set data.limit to 1 or more, or to null; it is {self.limit}.")


@dataclass(frozen=True)
class Corpus:
    """Text in a training and a validation region, both cut into rows."""

    name: str
    """The folder, the file, or the Python whose text it is."""
    train: Rows
    """Rows of the first region."""
    validation: Rows
    """Rows of the region behind it."""
    tokenizer: Tokenizer
    """What turned the text into tokens."""
    origin: text.Tokens | Mapping[str, Any]
    """What makes it this corpus and no other: its tokens, or the record of a folder."""
    validation_bytes_per_token: float | None = 1.0
    """Bytes of text for each token that counts in validation; of text that is bytes, one. None for chats: most of the
    tokens that count fill rows up behind an answer, and stand for no text."""

    @property
    def sft(self) -> bool:
        """Whether rows begin with a prompt, so that only answers are learned."""
        return isinstance(self.train, Answers)

    @property
    def sequence_length(self) -> int:
        """Tokens in a row."""
        return self.train.length

    def check_fits(self, vocab_size: int, embedding_size: int, max_sequence_length: int | None = None) -> None:
        """Refuse a network that has no room for a token of this corpus, or for its rows."""
        vocabulary = self.tokenizer.vocabulary
        if vocabulary.mask >= embedding_size:
            raise UserError(
                f"Set model.embedding_size above {vocabulary.mask}, which is the mask token of {self.name}; it is "
                f"{embedding_size}."
            )
        if vocabulary.size > vocab_size:
            raise UserError(
                f"Set model.vocab_size to {vocabulary.size} or more, the number of tokens of {self.name}; it is "
                f"{vocab_size}."
            )
        if max_sequence_length is not None and self.sequence_length > max_sequence_length:
            raise UserError(
                f"Set model.max_sequence_length to {self.sequence_length} or more, the length of the rows of "
                f"{self.name}; it is {max_sequence_length}."
            )

    def describe(self) -> dict[str, str | int | float | None]:
        """What to record of a corpus, its hash included: Python's text differs from version to version."""
        return {
            "name": self.name,
            "sha256": self._fingerprint(),
            "tokenizer": self.tokenizer.kind,
            "tokens": self.train.size + self.validation.size,
            "train_tokens": self.train.size,
            "train_rows": len(self.train),
            "validation_tokens": self.validation.size,
            "validation_rows": len(self.validation),
            "validation_bytes_per_token": self.validation_bytes_per_token,
        }

    def _fingerprint(self) -> str:
        if isinstance(self.origin, Mapping):
            return hashlib.sha256(json.dumps(self.origin, sort_keys=True).encode()).hexdigest()
        return text.fingerprint(self.origin)


def load(config: DataConfig, cache: Path | None = None) -> Corpus:
    """Open the corpus that the configuration names; the same on every rank, and free of any random choice.

    `cache` is a folder in which an unpacked JSONL file may be kept.
    """
    if config.path is None:
        tokens = np.frombuffer(pydoc_text(config.limit).encode("utf-8"), dtype=np.uint8)
        return _bytes("pydoc_data.topics", tokens, config)
    folder = Path(config.path).expanduser()
    if is_prepared(folder):
        return _prepared(open_prepared(folder), config)
    if is_older(folder):
        return _older(open_older(folder), config)
    if folder.is_dir():
        raise UserError(f"Prepare the folder first: samestep data prepare {folder}; or name one text file in it.")
    return _bytes(
        config.path, text.open_text(config.path, field=config.field, separator=BYTES.eos, cache=cache), config
    )


def row_length(config: DataConfig) -> int:
    """Tokens in a row, without opening more than a small file."""
    folder = None if config.path is None else Path(config.path).expanduser()
    metadata = {} if folder is None else read_record(folder / METADATA)
    own = metadata.get("sequence_length")
    fixed = metadata.get("kind") == "chat" or "format" not in metadata
    if own is not None and (fixed or config.sequence_length is None):
        return int(own)
    return config.sequence_length or USUAL_LENGTH


def tokenizer_of(config: DataConfig) -> Tokenizer:
    """What turns text into this data's tokens, without opening the data."""
    folder = Path(config.path or "").expanduser()
    if config.path is None or not folder.is_dir():
        return ByteTokenizer()
    return load_tokenizer(folder / TOKENIZER_FOLDER) if is_prepared(folder) else read_tokenizer(folder)


def _bytes(name: str, tokens: text.Tokens, config: DataConfig) -> Corpus:
    if config.limit is not None:
        tokens = text.part(tokens, 0, config.limit)
        tokens = tokens.alone() if isinstance(tokens, text.TokenFile) else tokens  # the rest is never read
    train, validation = text.split(tokens, config.validation_fraction)
    rows = _windows(name, train, validation, row_length(config), BYTES.eos)
    return Corpus(name, *rows, ByteTokenizer(), tokens)


def _prepared(folder: Prepared, config: DataConfig) -> Corpus:
    name, facts, pad = str(config.path), folder.metadata, folder.tokenizer.vocabulary.eos
    share = _share(config, facts["total_tokens"])
    if folder.train_rows is not None and folder.validation_rows is not None:
        train = Answers(folder.train, _first(folder.train_rows, share), row_length(config), pad)
        validation = Answers(folder.validation, _first(folder.validation_rows, share), row_length(config), pad)
        return Corpus(name, train, validation, folder.tokenizer, facts, validation_bytes_per_token=None)
    head, tail = (text.part(tokens, 0, round(len(tokens) * share)) for tokens in (folder.train, folder.validation))
    rows = _windows(name, head, tail, row_length(config), pad)
    return Corpus(name, *rows, folder.tokenizer, facts, facts["val_bytes"] / facts["val_tokens"])


def _older(folder: Older, config: DataConfig) -> Corpus:
    share = _share(config, (folder.train.shape[0] + folder.validation.shape[0]) * folder.row_length)
    train, validation = (
        WholeRows(rows, max(1, round(rows.shape[0] * share))) for rows in (folder.train, folder.validation)
    )
    bytes_per_token = folder.validation_bytes_per_token()
    return Corpus(str(config.path), train, validation, folder.tokenizer, folder.metadata, bytes_per_token)


def _share(config: DataConfig, tokens: int) -> float:
    return 1.0 if config.limit is None else min(1.0, config.limit / tokens)


def _first(index: text.Tokens, share: float) -> text.Tokens:
    return text.part(index, 0, 3 * max(1, round(len(index) // 3 * share)))


def _windows(name: str, train: text.Tokens, validation: text.Tokens, length: int, pad: int) -> tuple[Windows, Windows]:
    if len(train) < length or not len(validation):
        raise UserError(
            f"Give a longer text, or a smaller data.sequence_length than {length}; {name} has "
            f"{len(train) + len(validation)} tokens, of which {len(train)} are for training and {len(validation)} for "
            f"validation."
        )
    return Windows(train, length, pad), Windows(validation, length, pad)


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


QUESTIONS = "pydoc-questions"
"""What `data.path` is set to for them."""


def load_questions(config: DataConfig) -> Corpus:
    """As many as `data.limit` tokens have room for; the last ones are for validation."""
    tokenizer, length = ByteTokenizer(), config.sequence_length or USUAL_LENGTH
    rows = [row for row in _rows() if row.prompt < length]
    if config.limit is not None:
        rows = rows[: max(2, config.limit // length)]
    kept = len(rows) - max(1, round(len(rows) * config.validation_fraction))
    if kept < 1:
        raise UserError(f"Raise data.sequence_length above {length}: few questions of {QUESTIONS} are so short.")
    train, validation = rows[:kept], rows[kept:]
    tokens = np.array([token for row in rows for token in row.tokens])
    pad = tokenizer.vocabulary.eos
    regions = (_answers(train, length, pad), _answers(validation, length, pad))
    return Corpus(QUESTIONS, *regions, tokenizer, tokens, validation_bytes_per_token=None)


def _rows() -> Iterator[Row]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError("Give a folder of chats with data.path; this Python comes without pydoc_data.topics.") from None
    for topic in sorted(topics):
        said = [passage for passage in passages(topics[topic]) if "***" not in passage and "===" not in passage]
        chat = [Message("user", f"What is {topic}?"), Message("assistant", " ".join(said[0].split()) if said else "")]
        yield from answers(ByteTokenizer(), chat)


def _answers(rows: list[Row], length: int, pad: int) -> Answers:
    """The rows as a prepared folder would have them."""
    cut = [row.tokens[:length] for row in rows]
    starts = np.cumsum([0, *map(len, cut)])[:-1]
    index = np.array([[start, len(row), whole.prompt] for start, row, whole in zip(starts, cut, rows)]).ravel()
    return Answers(np.array([token for row in cut for token in row]), index, length, pad)
