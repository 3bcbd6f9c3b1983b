"""Pairs of texts: records `prompt, chosen, rejected`, each a text or a chat; and their rows of tokens."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from samestep import noise
from samestep.data.data_file import DataFile
from samestep.data.json_records import BadJson
from samestep.data.pydoc_topics import distinct, passages, pydoc_topics

COLUMNS = ("prompt", "chosen", "rejected")
Chat = tuple[Mapping[str, Any], ...]
Text = str | Chat
_WORD = re.compile(r"[A-Za-z]{4,}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TYPO = noise.purpose("dpo/typo")
_TYPO_SHARE = 0.5


@dataclass(frozen=True)
class TextPair:
    """A prompt with two answers; all three are texts, or all three are chats."""

    prompt: Text
    chosen: Text
    rejected: Text


class Fault(NamedTuple):
    """Why a record cannot be used."""

    about: str
    text: str


class PairTokens(NamedTuple):
    """A pair as tokens; each completion follows the prompt."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]


def read_pair(record: Any) -> TextPair | Fault:
    """The pair of a record, or what is wrong with it. A text beside chats is what the user or the model says."""
    if not isinstance(record, dict):
        reason = record.reason if isinstance(record, BadJson) else "it is no JSON object"
        return Fault("JSON", f"{reason}; write one with {', '.join(COLUMNS)}")
    wrong = [f"{name!r} {fault}" for name in COLUMNS if (fault := _fault(record.get(name)))]
    if wrong:
        return Fault("texts", ", ".join(wrong))
    prompt, chosen, rejected = (record[name] for name in COLUMNS)
    if not all(isinstance(value, str) for value in (prompt, chosen, rejected)):
        prompt, chosen, rejected = _chat(prompt, "user"), _chat(chosen, "assistant"), _chat(rejected, "assistant")
    if chosen == rejected:
        return Fault("texts", "'chosen' and 'rejected' are the same; give two that differ, or leave the record out")
    return TextPair(prompt, chosen, rejected)


def _chat(value: str | Sequence[Mapping[str, Any]], role: str) -> Chat:
    return ({"role": role, "content": value},) if isinstance(value, str) else tuple(value)


def _fault(value: Any) -> str:
    """Why a value is neither a text nor a chat; empty if it is one."""
    if value is None:
        return "is missing"
    if isinstance(value, str):
        return _text_fault(value)
    if not isinstance(value, list):
        return f"is a {type(value).__name__}, not a text or a list of messages"
    if not value:
        return "is empty"
    for message in value:
        parts: list[Any] = [message.get(key) for key in ("role", "content")] if isinstance(message, dict) else []
        if not parts or not all(isinstance(part, str) and part.strip() for part in parts):
            return "has a message without a text as 'role' and as 'content'"
        if fault := next(filter(None, map(_text_fault, parts)), ""):
            return f"has a message that {fault}"
    return ""


def _text_fault(text: str) -> str:
    """JSON can spell half of a character, which no tokenizer takes."""
    if not text.strip():
        return "is empty"
    return "has half of a surrogate pair, which is no character" if _SURROGATE.search(text) else ""


def pydoc_pairs() -> Iterator[TextPair]:
    """Sentences of Python's help, preferred to the same with typing errors, after what stands before them."""
    every = distinct(passage for _, topic in pydoc_topics() for passage in passages(topic))
    for number, passage in enumerate(every):
        words = passage.split()
        if passage[0].isalpha() and passage.endswith(".") and len(words) >= 12 and "::=" not in passage:
            prompt, rest = " ".join(words[:6]), " " + " ".join(words[6:18])
            rejected = _with_typos(rest, number)
            if rejected != rest:
                yield TextPair(prompt, rest, rejected)


def _with_typos(text: str, number: int) -> str:
    """The text with two neighbouring letters exchanged in about half of its longer words."""

    def swap(found: re.Match[str]) -> str:
        word, key = found[0], (0, _TYPO, number, found.start())
        if not bool(noise.below(_TYPO_SHARE, *key, 0)):
            return word
        at = int(noise.integers(len(word) - 1, *key, 1))
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]

    return _WORD.sub(swap, text)


class TextRows:
    """Pairs as tokens."""

    def __init__(self, pairs: Sequence[tuple[int, PairTokens]], origin: DataFile | np.ndarray) -> None:
        """`pairs` have their numbers in all of the run's data."""
        self._pairs, self._origin = pairs, origin
        self.lengths = [len(pair.prompt) + max(len(pair.chosen), len(pair.rejected)) for _, pair in pairs]

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        record, pair = self._pairs[index]
        row = {"record": torch.tensor(record)}
        for name, tokens in zip(COLUMNS, pair):
            row[name] = torch.tensor(tokens)
            row[f"is_{name}"] = torch.ones(len(tokens), dtype=torch.bool)
        return row

    def origins(self) -> list[DataFile | np.ndarray]:
        return [self._origin]
