"""Chats as rows of prompt and answer: a turn is a header with who speaks, two line ends, what is said, and an end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from samestep.core.errors import UserError
from samestep.data.prepared import ROWS
from samestep.data.prepared.sources import TextSource, read_records
from samestep.data.prepared.split import REGIONS, ByDocument, Region, Split
from samestep.data.prepared.writing import Count, Done, Shards, Writing
from samestep.data.text import string
from samestep.data.tokenizer.vocabulary import Tokenizer

ANSWERS = "assistant"
"""Who is learned from."""


@dataclass(frozen=True)
class Message:
    """What one of a chat says."""

    role: str
    content: str


@dataclass(frozen=True)
class Row:
    """An answer and all that stands before it."""

    tokens: list[int]
    prompt: int
    """How many of the tokens are given: what was said before, and the header of the answer."""
    size: int
    """Bytes of the answer as text."""


@dataclass(frozen=True)
class ChatFields:
    """Where a record that is a single question holds it."""

    prompt: str = "prompt"
    answer: str = "answer"

    def has_chat(self, record: dict[str, Any]) -> bool:
        """Whether a record looks like a chat."""
        return "messages" in record or {self.prompt, self.answer} <= record.keys()

    def chat(self, record: dict[str, Any], where: str) -> list[Message]:
        """The messages of a record: its `messages`, or its prompt and answer."""
        if not self.has_chat(record):
            raise UserError(
                f'Give {where} "messages", or name its question and answer with --prompt_field and --answer_field; it '
                f"has {', '.join(record) or 'nothing'}."
            )
        if "messages" not in record:
            return [Message("user", string(record, self.prompt, where)), self._answer(record, where)]
        messages = record["messages"]
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise UserError(f'Make "messages" a list such as [{{"role": "user", "content": ...}}] on {where}.')
        return [Message(_part(message, "role", where), _part(message, "content", where)) for message in messages]

    def _answer(self, record: dict[str, Any], where: str) -> Message:
        return Message(ANSWERS, string(record, self.answer, where))


def _part(message: dict[str, Any], name: str, where: str) -> str:
    if not isinstance(message.get(name), str):
        raise UserError(f'Give each message of {where} a "role" and a "content" that are strings; one has no {name!r}.')
    return string(message, name, where)


def texts(messages: Sequence[Message]) -> Iterator[str]:
    """All text that a chat is made of, to learn a vocabulary from."""
    for message in messages:
        yield from (_head(message.role), message.content.strip())


def answers(tokenizer: Tokenizer, messages: Sequence[Message]) -> Iterator[Row]:
    """Each answer that says something as a row, with the chat up to it as its prompt."""
    for place, message in enumerate(messages):
        content = message.content.strip()
        if message.role == ANSWERS and content:
            prompt = chat_prompt(tokenizer, messages[:place])
            answer = [*tokenizer.encode(content), _end(tokenizer)]
            yield Row(prompt + answer, len(prompt), len(content.encode("utf-8")))


def chat_prompt(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """A chat that waits for an answer: all its turns and the header of the next, which is the assistant's."""
    bos = tokenizer.vocabulary.bos
    tokens = [] if bos is None else [bos]
    for message in messages:
        tokens += [*_turn(tokenizer, message.role, message.content.strip()), _end(tokenizer)]
    return tokens + _turn(tokenizer, ANSWERS, "")


def _turn(tokenizer: Tokenizer, role: str, content: str) -> list[int]:
    headers = tokenizer.vocabulary.headers
    if headers is None:  # a vocabulary without headers has them spelled out
        return tokenizer.encode(_head(role) + content)
    return [headers[0], *tokenizer.encode(role), headers[1], *tokenizer.encode("\n\n" + content)]


def _head(role: str) -> str:
    return f"{role}\n\n"


def _end(tokenizer: Tokenizer) -> int:
    vocabulary = tokenizer.vocabulary
    return vocabulary.eos if vocabulary.eot is None else vocabulary.eot


@dataclass(frozen=True)
class Chats:
    """Chats: each answer a row of its own, with all that was said before as its prompt."""

    sources: Sequence[TextSource]
    fields: ChatFields
    cut: bool
    """Whether an answer that is too long is cut, not left out."""
    kind: ClassVar[str] = "chat"
    usual_length: ClassVar[int] = 1024

    def count(self, spell: bool, done: Done) -> Count:
        """Read all chats once."""
        count = Count(spell)
        for chat in self._read():
            count.documents += 1
            for text in texts(chat):
                count.see(text)
            done(count.bytes)
        return count

    def split(self, count: Count, fraction: float, seed: int) -> Split:
        """Whole chats: no answer of a chat is validated on that another one of it gives away."""
        if count.documents < 2:
            raise UserError(f"Give two chats at least, one of them for validation; there are {count.documents}.")
        return ByDocument(count.documents, fraction, seed)

    def training_texts(self, split: Split) -> Iterator[str]:
        """The text of the training region."""
        assert isinstance(split, ByDocument)
        for number, chat in enumerate(self._read()):
            if split.region(number) == "train":
                yield from texts(chat)

    def write(self, writing: Writing, split: Split, done: Done) -> dict[str, Any]:
        """Tokenize and write all answers."""
        assert isinstance(split, ByDocument)
        books = {region: _Book(writing, region, shards) for region, shards in writing.shards().items()}
        again = Count(spell=False)
        for number, chat in enumerate(self._read()):
            book = books[split.region(number)]
            rows = list(answers(writing.tokenizer, chat))
            book.chats += 1
            book.silent += not rows
            for row in rows:
                book.add(row, self.cut)
            again.documents += 1
            for text in texts(chat):
                again.see(text)
            done(again.bytes)
        return {**writing.facts({r: book.shards for r, book in books.items()}), **_chat_facts(books, again)}

    def _read(self) -> Iterator[list[Message]]:
        for where, record in read_records(self.sources):
            yield self.fields.chat(record, where)


class _Book:
    """The rows of one region: their tokens, and where each begins, how long it is and where its answer begins."""

    def __init__(self, writing: Writing, region: Region, shards: Shards) -> None:
        self.writing, self.shards = writing, shards
        self.chats = self.rows = self.cut = self.left_out = self.silent = self.answer_tokens = self.answer_bytes = 0
        self._index = Shards(writing.folder, f"{region}-{ROWS}", "<i8", most=1 << 62)

    def add(self, row: Row, cut: bool) -> None:
        """Write a row if its prompt leaves room for an answer."""
        room = self.writing.row_length
        if row.prompt >= room or (len(row.tokens) > room and not cut):
            self.left_out += 1
            return
        tokens = np.array(row.tokens[:room], dtype=self.writing.dtype)
        self.writing.check(tokens)
        self._index.append(np.array([self.shards.tokens, len(tokens), row.prompt]))
        self.shards.append(tokens)
        self.rows += 1
        self.answer_tokens += room - row.prompt
        if len(row.tokens) > room:
            self.cut += 1
            self.answer_bytes += len(self.writing.tokenizer.decode(row.tokens[row.prompt : room]).encode("utf-8"))
        else:
            self.answer_bytes += row.size

    def close(self) -> list[dict[str, Any]]:
        """Have the index on the disk."""
        self._index.close()
        return self._index.files


def _chat_facts(books: dict[Region, _Book], again: Count) -> dict[str, Any]:
    left_out = sum(book.left_out for book in books.values())
    empty = next((region for region in REGIONS if not books[region].rows), None)
    if empty is not None:
        raise UserError(
            f"Give more chats with answers, or a longer sequence_length; {empty} has no row: {left_out} answers did "
            f"not fit, and {sum(book.silent for book in books.values())} of {again.documents} chats have none."
        )
    return {
        "train_samples": books["train"].rows,
        "val_samples": books["validation"].rows,
        "documents": again.documents,
        "val_documents": books["validation"].chats,
        "bytes": again.bytes,
        "val_bytes": books["validation"].answer_bytes,
        "val_answer_tokens": books["validation"].answer_tokens,
        "answers_cut": sum(book.cut for book in books.values()),
        "answers_left_out": left_out,
        "chats_without_answer": sum(book.silent for book in books.values()),
        "rows": {region: books[region].close() for region in REGIONS},
    }
