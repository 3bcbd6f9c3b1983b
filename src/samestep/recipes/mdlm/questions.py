"""A few questions with answers out of Python's built-in help: chats that need no download, for trials and proofs."""

from collections.abc import Iterator

import numpy as np

from samestep.core.errors import UserError
from samestep.data.prepared.chat import Message, Row, answers
from samestep.data.vocabulary import ByteTokenizer
from samestep.recipes.mdlm.corpus import USUAL_LENGTH, Corpus, DataConfig, passages
from samestep.recipes.mdlm.windows import Answers

PATH = "pydoc-questions"
"""What `data.path` is set to for them."""


def load(config: DataConfig) -> Corpus:
    """As many as `data.limit` tokens have room for; the last ones are for validation."""
    tokenizer, length = ByteTokenizer(), config.sequence_length or USUAL_LENGTH
    rows = [row for row in _rows() if row.prompt < length]
    if config.limit is not None:
        rows = rows[: max(2, config.limit // length)]
    kept = len(rows) - max(1, round(len(rows) * config.validation_fraction))
    if kept < 1:
        raise UserError(f"Raise data.sequence_length above {length}: few questions of {PATH} are so short.")
    train, validation = rows[:kept], rows[kept:]
    tokens = np.array([token for row in rows for token in row.tokens])
    pad = tokenizer.vocabulary.eos
    regions = (_answers(train, length, pad), _answers(validation, length, pad))
    return Corpus(PATH, *regions, tokenizer, tokens, validation_bytes_per_token=None)


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
