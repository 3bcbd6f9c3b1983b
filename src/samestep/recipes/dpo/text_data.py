"""Pairs of texts: records `prompt, chosen, rejected`, each a text or a chat; and their rows of tokens."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samestep import UserError, noise
from samestep.data.pydoc_topics import distinct, passages, pydoc_topics
from samestep.data.records.chats import ASSISTANT, text_or_messages
from samestep.data.records.reading import text_fault
from samestep.recipes.dpo.families import Division, Keys, Origins

COLUMNS = ("prompt", "chosen", "rejected")
PROMPTS = ("prompt", "question", "instruction", "conversations")
"""What the prompt may be called."""
_ASSISTANT_SPEAKS = re.compile(r"(?:^|\n)\s*Assistant:")
Chat = tuple[Mapping[str, Any], ...]
Text = str | Chat
_WORD = re.compile(r"[A-Za-z]{4,}")
_TYPO = noise.purpose("dpo/typo")
_TYPO_SHARE = 0.5


@dataclass(frozen=True)
class TextPair:
    """A prompt with two answers; all three are texts, or all three are chats."""

    prompt: Text
    chosen: Text
    rejected: Text


class PairTokens(NamedTuple):
    """A pair as tokens; each completion follows the prompt."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]

    @property
    def length(self) -> int:
        """Tokens of the longer completion, with the prompt."""
        return len(self.prompt) + max(len(self.chosen), len(self.rejected))

    def cut(self, most: int) -> "PairTokens":
        """Both completions cut where they end beyond so many tokens, the prompt included."""
        room = max(0, most - len(self.prompt))
        return PairTokens(self.prompt, self.chosen[:room], self.rejected[:room])


class ReadText(NamedTuple):
    """A pair of a file, also as tokens."""

    number: int
    """Its own in all of the run's data."""
    pair: TextPair
    tokens: PairTokens

    @property
    def length(self) -> int:
        return self.tokens.length


def read_pair(record: Mapping[str, Any]) -> TextPair:
    """The pair of a record; raises UserError if it has none. A text beside chats is what the user or the model says.

    The prompt may also be what `chosen` and `rejected` both begin with, as texts or as chats.
    """
    sides = _without_prompt({name: text_or_messages(record.get(name)) for name in COLUMNS[1:]} | _prompt_of(record))
    wrong = [f"{name!r} {fault}" for name in COLUMNS if (fault := _fault(sides.get(name)))]
    if wrong:
        raise UserError(", ".join(wrong))
    prompt, chosen, rejected = (sides[name] for name in COLUMNS)
    if not all(isinstance(value, str) for value in (prompt, chosen, rejected)):
        prompt, chosen, rejected = _chat(prompt, "user"), _chat(chosen, "assistant"), _chat(rejected, "assistant")
    if chosen == rejected:
        raise UserError("'chosen' and 'rejected' are the same; give two that differ, or leave the record out")
    return TextPair(prompt, chosen, rejected)


def _prompt_of(record: Mapping[str, Any]) -> dict[str, Any]:
    found = next((record[name] for name in PROMPTS if record.get(name) not in (None, "", [])), record.get("prompt"))
    return {"prompt": text_or_messages(found)}


def _without_prompt(sides: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same with a prompt, and without it in the completions, where both of them begin with it."""
    prompt, chosen, rejected = (sides[name] for name in COLUMNS)
    if isinstance(chosen, str) and isinstance(rejected, str):
        size = len(_shared_text(chosen, rejected)) if prompt is None else 0
        return {"prompt": chosen[:size], "chosen": chosen[size:], "rejected": rejected[size:]} if size else sides
    if not (_is_chat(chosen) and _is_chat(rejected)) or chosen[0]["role"] == ASSISTANT:
        return sides
    size = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chosen[:-1], rejected[:-1])))
    shared = chosen[:size]
    said = [message["content"] for message in shared]
    is_said = prompt in said if isinstance(prompt, str) else prompt is None or shared[: len(prompt)] == prompt
    if not is_said:
        raise UserError("'chosen' and 'rejected' do not begin with 'prompt'; leave it out of the record, or begin so")
    return {"prompt": shared or None, "chosen": chosen[size:], "rejected": rejected[size:]}


def _shared_text(first: str, second: str) -> str:
    """What both texts begin with: up to where an assistant speaks, or the last whole word."""
    size = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second)))
    shared = first[:size]
    if turns := list(_ASSISTANT_SPEAKS.finditer(shared)):
        return shared[: turns[-1].end()]
    return shared[: max(shared.rfind(" "), shared.rfind("\n"), 0)]


def _chat(value: str | Sequence[Mapping[str, Any]], role: str) -> Chat:
    return ({"role": role, "content": value},) if isinstance(value, str) else tuple(value)


def _is_chat(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and not _fault(value)


def _fault(value: Any) -> str:
    """Why a value is neither a text nor a chat; empty if it is one."""
    if not isinstance(value, list):
        return text_fault(value)
    if not value:
        return "is empty"
    for message in value:
        if not isinstance(message, dict):
            return "has a message that is no object with 'role' and 'content'"
        for name in ("role", "content"):
            if fault := text_fault(message.get(name)):
                return f"has a message whose {name!r} {fault}"
    return ""


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

    def __init__(self, pairs: Sequence[ReadText], origins: Origins) -> None:
        self._pairs, self._origins = pairs, origins
        self.lengths = [pair.length for pair in pairs]

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        pair = self._pairs[index]
        row = {"record": torch.tensor(pair.number)}
        for name, tokens in zip(COLUMNS, pair.tokens):
            row[name] = torch.tensor(tokens)
            row[f"is_{name}"] = torch.ones(len(tokens), dtype=torch.bool)
        return row

    def origins(self) -> Origins:
        return self._origins


def _keys(read: ReadText) -> Keys:
    pair = read.pair
    prompt, chosen, rejected = (json.dumps(text, sort_keys=True) for text in (pair.prompt, pair.chosen, pair.rejected))
    return Keys(f"{prompt} {chosen} {rejected}", prompt, chosen)


divide_texts = Division(_keys, TextRows, ("prompt", "preferred completion"))
