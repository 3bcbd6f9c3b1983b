"""Chats as tokens, in LLaDA's manner: a turn is a header with who speaks, two line ends, what is said, and an end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from samestep.core.errors import UserError
from samestep.data.text import string
from samestep.data.vocabulary import Tokenizer

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
