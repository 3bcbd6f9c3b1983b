"""Data made of the text inside Python: sentences with words as tokens, and questions with their answers."""

from collections.abc import Iterator

import numpy as np

from samestep.data import text
from samestep.data.prepared.chats import ChatMessage, ChatRow, answers
from samestep.data.pydoc_topics import passages, pydoc_prose, pydoc_topics
from samestep.data.token_rows import AnswerRows
from samestep.data.tokenizer.vocabulary import ByteTokenizer
from samestep.data.tokenizer.word import WordTokenizer

PROSE_TOKENS = 2048
"""Size of the vocabulary of `pydoc-prose`: words that come once in its training part are left out."""


def split_prose(validation: float, test: float) -> tuple[WordTokenizer, list[str]]:
    """The tokenizer, whose words are those of the training part; and the text for training, validation and a test."""
    lines = text.split(np.array(pydoc_prose(), dtype=object), validation, test)
    parts = ["".join(f"{line}\n" for line in part[:]) for part in lines]
    return WordTokenizer.learned(parts[:1], PROSE_TOKENS), parts


def bytes_per_answer_token(rows: list[ChatRow], length: int) -> float:
    """Of the answers, as far as they fit into rows, each with its end token."""
    counted = [min(len(row.tokens), length) - row.prompt for row in rows]
    return sum(min(row.size, tokens) for row, tokens in zip(rows, counted)) / sum(counted)


def question_rows() -> Iterator[ChatRow]:
    for topic, content in pydoc_topics():
        texts = [passage for passage in passages(content) if "***" not in passage and "===" not in passage]
        answer = " ".join(texts[0].split()) if texts else ""
        chat = [ChatMessage("user", f"What is {topic}?"), ChatMessage("assistant", answer)]
        yield from answers(ByteTokenizer(), chat)


def answer_rows(rows: list[ChatRow], length: int, pad: int) -> AnswerRows:
    """The rows in the format of a prepared folder."""
    cut = [row.tokens[:length] for row in rows]
    starts = np.cumsum([0, *map(len, cut)])[:-1]
    index = np.array([[start, len(tokens), row.prompt] for start, tokens, row in zip(starts, cut, rows)]).ravel()
    return AnswerRows(np.array([token for tokens in cut for token in tokens]), index, length, pad)
