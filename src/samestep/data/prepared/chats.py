"""Chats as rows of prompt and answer. A turn is a header with the role, two line ends, the content and an end token."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from samestep.core.errors import UserError
from samestep.data.prepared import ROWS
from samestep.data.prepared.sources import TextSource
from samestep.data.prepared.split import ByDocument, Region, Split
from samestep.data.prepared.writing import ReportBytes, Shards, TextCounts, Writing
from samestep.data.records.chats import CHAT_COLUMNS, LISTS, PAIRS, find_messages
from samestep.data.records.reading import SHOWN, text_fault
from samestep.data.records.too_long import LengthLimit, TooLong
from samestep.data.tokenizer.vocabulary import Tokenizer

ANSWERS = "assistant"
"""The role whose messages are the answers."""


@dataclass(frozen=True)
class ChatMessage:
    """One message of a chat."""

    role: str
    content: str


@dataclass(frozen=True)
class ChatRow:
    """An answer and everything before it."""

    tokens: list[int]
    prompt: int
    """How many of the tokens are prompt: the earlier turns and the header of the answer."""
    size: int
    """Bytes of the answer as text."""


def read_chat(record: Mapping[str, Any]) -> list[ChatMessage]:
    """The messages of a record, in any of the layouts that `data.records.chats` lists."""
    messages = find_messages(record)
    if messages is None:
        wanted = PAIRS[0] if "messages" not in record else ("messages",)
        wrong = [f"{name!r} {_fault(record.get(name))}" for name in wanted if _fault(record.get(name))]
        raise UserError(f"{', '.join(wrong)}; give the record {' and '.join(PAIRS[0])}, or 'messages'")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UserError('\'messages\' is no list such as [{"role": "user", "content": ...}]')
    for name in ("role", "content"):
        if fault := next(filter(None, (_fault(message.get(name)) for message in messages)), ""):
            raise UserError(f"{name!r} of a message {fault}")
    return [ChatMessage(message["role"], message["content"]) for message in messages]


def _fault(value: Any) -> str:
    """Why a value is no text, which may be empty here."""
    return "" if isinstance(value, str) and not value.strip() else text_fault(value)


def texts(messages: Sequence[ChatMessage]) -> Iterator[str]:
    """All text in a chat, to learn a vocabulary from."""
    for message in messages:
        yield from (_head(message.role), message.content.strip())


def answers(tokenizer: Tokenizer, messages: Sequence[ChatMessage]) -> Iterator[ChatRow]:
    """A row for each answer that is not empty, with the chat before it as its prompt."""
    for number, message in enumerate(messages):
        content = message.content.strip()
        if message.role == ANSWERS and content:
            prompt = chat_prompt(tokenizer, messages[:number])
            answer = [*tokenizer.encode(content), _end(tokenizer)]
            yield ChatRow(prompt + answer, len(prompt), len(content.encode("utf-8")))


def chat_prompt(tokenizer: Tokenizer, messages: Sequence[ChatMessage]) -> list[int]:
    """A chat up to an answer: all its turns, and the header of the assistant's next turn."""
    bos = tokenizer.vocabulary.bos
    tokens = [] if bos is None else [bos]
    for message in messages:
        tokens += [*_turn(tokenizer, message.role, message.content.strip()), _end(tokenizer)]
    return tokens + _turn(tokenizer, ANSWERS, "")


def _turn(tokenizer: Tokenizer, role: str, content: str) -> list[int]:
    headers = tokenizer.vocabulary.headers
    if headers is None:  # without header tokens, the role is spelled out
        return tokenizer.encode(_head(role) + content)
    return [headers[0], *tokenizer.encode(role), headers[1], *tokenizer.encode("\n\n" + content)]


def _head(role: str) -> str:
    return f"{role}\n\n"


def _end(tokenizer: Tokenizer) -> int:
    vocabulary = tokenizer.vocabulary
    return vocabulary.eos if vocabulary.eot is None else vocabulary.eot


@dataclass(frozen=True)
class Chats:
    """Chats: each answer is a row of its own, with all earlier turns as its prompt."""

    sources: Sequence[TextSource]
    too_long: TooLong
    """What is done with an answer that is too long."""
    skip_invalid: bool
    """Whether records without a chat are left out; if not, they are refused."""
    kind: ClassVar[str] = "chat"
    default_length: ClassVar[int] = 1024

    def count(self, collect_characters: bool, done: ReportBytes) -> TextCounts:
        """Read all chats once."""
        counts = TextCounts(collect_characters)
        for _, chat in self._read():
            _count(counts, chat)
            done(counts.bytes)
        return counts

    def split(self, counts: TextCounts, validation: float, test: float, seed: int) -> Split:
        """Whole chats: no answer in validation is given away by another answer of its chat in training."""
        if counts.documents < 2:
            raise UserError(f"Give at least two chats, one of them for validation; there are {counts.documents}.")
        return ByDocument(counts.digests, validation, test, seed)

    def training_texts(self, split: Split) -> Iterator[str]:
        """The text of the training region."""
        assert isinstance(split, ByDocument)
        for number, (_, chat) in enumerate(self._read()):
            if split.region(number) == "train":
                yield from texts(chat)

    def write(self, writing: Writing, split: Split, done: ReportBytes) -> dict[str, Any]:
        """Tokenize and write all answers."""
        assert isinstance(split, ByDocument)
        writers = {
            region: _RowWriter(writing, region, shards) for region, shards in writing.shards(split.regions).items()
        }
        counts = TextCounts(collect_characters=False)
        limit, refused = LengthLimit(writing.row_length, self.too_long, what="answers", setting="too_long"), list[str]()
        for number, (where, chat) in enumerate(self._read()):
            writer = writers[split.region(number)]
            rows = list(answers(writing.tokenizer, chat))
            writer.chats += 1
            writer.chats_without_answer += not rows
            for row in rows:
                problems: list[str] = []
                writer.add(row, limit.keeps(len(row.tokens), problems.append))
                refused += [f"{where}: {problem}" for problem in problems]
            _count(counts, chat)
            done(counts.bytes)
        if refused:
            raise UserError("\n  ".join([f"Shorten {len(refused)} answers:", *refused[:SHOWN]]))
        shards = {region: writer.shards for region, writer in writers.items()}
        return {**writing.metadata(shards), **_chat_metadata(writers, counts)}

    def _read(self) -> Iterator[tuple[str, list[ChatMessage]]]:
        """All chats, and where they are; records that have none are refused at the end of their file."""
        for source in self.sources:
            assert source.records is not None, "chats are in records"
            source.records.expect([CHAT_COLUMNS], lists=LISTS)
            for row in source.records:
                chat = None
                with source.records.refusing(row, "chats"):
                    chat = read_chat(row.values)
                if chat is not None:
                    yield f"{source.name} {row.where}", chat
            source.records.check(self.skip_invalid)


def _count(counts: TextCounts, chat: Sequence[ChatMessage]) -> None:
    for text in texts(chat):
        counts.add(text)
    counts.end_document()


class _RowWriter:
    """Writes the rows of one region: their tokens, and where each begins, how long it is, where its answer begins."""

    def __init__(self, writing: Writing, region: Region, shards: Shards) -> None:
        self.writing, self.shards = writing, shards
        self.chats = self.chats_without_answer = 0
        self.rows = self.cut = self.left_out = self.answer_tokens = self.answer_bytes = 0
        self._index = Shards(writing.folder, f"{region}-{ROWS}", "<i8", most=1 << 62)

    def add(self, row: ChatRow, keeps: bool) -> None:
        """Write a row, cut to its length, if it is to be kept and its prompt leaves room for an answer."""
        longest = self.writing.row_length
        if row.prompt >= longest or not keeps:
            self.left_out += 1
            return
        tokens = np.array(row.tokens[:longest], dtype=self.writing.dtype)
        self.writing.check(tokens)
        self._index.append(np.array([self.shards.tokens, len(tokens), row.prompt]))
        self.shards.append(tokens)
        self.rows += 1
        self.answer_tokens += len(tokens) - row.prompt
        if len(row.tokens) > longest:
            self.cut += 1
            self.answer_bytes += len(self.writing.tokenizer.decode(row.tokens[row.prompt : longest]).encode("utf-8"))
        else:
            self.answer_bytes += row.size

    def close(self) -> list[dict[str, Any]]:
        """Write the index to disk; return its files."""
        self._index.close()
        return self._index.files


def _chat_metadata(writers: dict[Region, _RowWriter], counts: TextCounts) -> dict[str, Any]:
    left_out = sum(writer.left_out for writer in writers.values())
    unanswered = sum(writer.chats_without_answer for writer in writers.values())
    empty = next((region for region, writer in writers.items() if not writer.rows), None)
    if empty is not None:
        raise UserError(
            f"Give more chats with answers, or a longer sequence_length; {empty} has no row: {left_out} answers did "
            f"not fit, and {unanswered} of {counts.documents} chats have no answer."
        )
    test = {}
    if (writer := writers.get("test")) is not None:
        test = {"test_samples": writer.rows, "test_documents": writer.chats, "test_bytes": writer.answer_bytes}
        test["test_answer_tokens"] = writer.answer_tokens
    return {
        **test,
        "train_samples": writers["train"].rows,
        "val_samples": writers["validation"].rows,
        "documents": counts.documents,
        "val_documents": writers["validation"].chats,
        "bytes": counts.bytes,
        "val_bytes": writers["validation"].answer_bytes,
        "val_answer_tokens": writers["validation"].answer_tokens,
        "answers_cut": sum(writer.cut for writer in writers.values()),
        "answers_left_out": left_out,
        "chats_without_answer": unanswered,
        "rows": {region: writer.close() for region, writer in writers.items()},
    }
