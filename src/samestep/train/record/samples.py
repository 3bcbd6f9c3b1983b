"""Samples of what a network makes, for people to look at: `bench.log_samples("answers", samples.Text(text, prompt))`.

Each kind is a class. Its `fields` are a row of samples.jsonl, beside `stage`, `step`, `name` and `kind`; long texts
and lists are cut there. Imports no torch: reports read the rows too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from samestep.core.json_files import Json

MOST_TEXT = 2_000
"""Characters of a text that are kept, and residues of a sequence."""
MOST_HITS, MOST_TEXTS = 10, 8
"""Passages of a query that are kept, and texts or sequences that stand beside each other."""
TIE = "tie"
"""The verdict of a judge that prefers neither."""
TYPES: Mapping[str, Mapping[str, type]] = {
    "text": {"prompt": str, "text": str},
    "pair": {"prompt": str, "texts": dict, "verdicts": list, "scores": dict},
    "alignment": {"title": str, "sequences": dict, "recovery": dict},
    "hits": {"query": str, "hits": list},
    "explanation": {"before": str, "token": str, "explanation": str, "error": float},
    "image": {"caption": str, "image": str},
}
"""The fields of each kind."""


class Sample(Protocol):
    """One sample of any kind."""

    kind: ClassVar[str]

    def fields(self) -> dict[str, Json]:
        """What a row of samples.jsonl holds of it."""


@dataclass(frozen=True)
class Text:
    """What was written, and the prompt that it continues or answers."""

    kind: ClassVar[str] = "text"
    text: str
    """What was written."""
    prompt: str = ""
    """What it follows; the end of a long one is kept."""

    def fields(self) -> dict[str, Json]:
        return {"prompt": _end(self.prompt), "text": _start(self.text)}


@dataclass(frozen=True)
class Pair:
    """Two texts for one prompt, such as {"human": ..., "policy": ...}, and which of them is preferred."""

    kind: ClassVar[str] = "pair"
    texts: Mapping[str, str]
    """By whose they are."""
    prompt: str = ""
    """What both follow."""
    verdicts: Sequence[str | None] = ()
    """What a judge answered when they stood in this order, and in the other one: whose text it preferred, "tie", or
    None for an answer that could not be read. Empty: there was no judge."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """A number for each, such as a reward."""

    def fields(self) -> dict[str, Json]:
        return {
            "prompt": _end(self.prompt),
            "texts": _texts(self.texts),
            "verdicts": list(self.verdicts[:2]),
            "scores": _numbers(self.scores),
        }


@dataclass(frozen=True)
class Alignment:
    """Sequences of one length, letter by letter, such as {"native": ..., "policy": ...}: the first is what the others
    are compared with."""

    kind: ClassVar[str] = "alignment"
    sequences: Mapping[str, str]
    """By name."""
    title: str = ""
    """What they are of."""
    recovery: Mapping[str, float] = field(default_factory=dict)
    """The share of letters that are those of the first sequence; by default counted over all of them."""

    def fields(self) -> dict[str, Json]:
        recovery = self.recovery or _recovery(list(self.sequences.values()), list(self.sequences))
        return {
            "title": _start(self.title),
            "sequences": _texts(self.sequences, mark=""),
            "recovery": _numbers(recovery),
        }


@dataclass(frozen=True)
class Hit:
    """A passage that was found."""

    text: str
    """The passage."""
    score: float
    """How close it is to the query."""
    relevant: bool = False
    """Whether it answers the query."""
    ranks: Mapping[str, int] = field(default_factory=dict)
    """Where others have it, such as {"teacher": 3}; the best is 1."""


@dataclass(frozen=True)
class Hits:
    """A query and the passages that were found for it, best first."""

    kind: ClassVar[str] = "hits"
    query: str
    """What was asked."""
    hits: Sequence[Hit]
    """The passages; the first 10 are kept."""

    def fields(self) -> dict[str, Json]:
        found = [
            {"text": _start(h.text), "score": _number(h.score), "relevant": h.relevant, "ranks": dict(h.ranks)}
            for h in self.hits[:MOST_HITS]
        ]
        return {"query": _start(self.query), "hits": found}


@dataclass(frozen=True)
class Explanation:
    """What a text says about the activation of a token, and how far what is rebuilt from it is off."""

    kind: ClassVar[str] = "explanation"
    before: str
    """The text before the token."""
    token: str
    """The token whose activation it is."""
    explanation: str
    """What is said about it."""
    error: float | None = None
    """The relative error of what is rebuilt."""

    def fields(self) -> dict[str, Json]:
        texts = {"before": _end(self.before), "token": _start(self.token), "explanation": _start(self.explanation)}
        return {**texts, "error": _number(self.error)}


@dataclass(frozen=True)
class Image:
    """A picture: a tensor [C, H, W], [H, W, C] or [H, W] with 1, 3 or 4 channels, uint8 or floats from 0 to 1 (others
    are cut off). Where the first and the last dimension could both be channels, the first is taken."""

    kind: ClassVar[str] = "image"
    image: Any
    """The pixels; of a side with more than 768, every n-th is kept."""
    caption: str = ""
    """What it shows."""

    def fields(self) -> dict[str, Json]:
        return {"caption": _start(self.caption)}  # a row also has `image`, the file of the picture


KINDS = (Text, Pair, Alignment, Hits, Explanation, Image)


def as_cells(row: Mapping[str, Json]) -> dict[str, Json]:
    """The fields of a row one by one, for a table: those of mappings by their own names, lists as lines."""
    cells: dict[str, Json] = {}
    for name, value in row.items():
        if name in ("stage", "step", "name", "kind"):
            continue
        for inner, one in value.items() if isinstance(value, dict) else [("", value)]:
            is_text = name in ("texts", "sequences")
            cells[f"{name} {inner}".strip() if inner and not is_text else inner or name] = _as_cell(one)
    return cells


def as_text(row: Mapping[str, Json]) -> str:
    """A row as lines, for people."""
    return "\n".join(f"{name}: {value}" for name, value in as_cells(row).items() if value not in ("", None))


def _as_cell(value: Json) -> Json:
    if not isinstance(value, list):
        return value
    return "\n".join(_line(number, one) for number, one in enumerate(value, 1))


def _line(number: int, value: Json) -> str:
    if not isinstance(value, dict):
        return f"{value}"
    ranks = "".join(f", {who} {rank}" for who, rank in value.get("ranks", {}).items())
    relevant = ", relevant" if value.get("relevant") else ""
    return f"{number}. ({value.get('score')}{relevant}{ranks}) {value.get('text')}"


def _start(text: str, most: int = MOST_TEXT, mark: str = " ...") -> str:
    text = _writable(text)
    return text if len(text) <= most else f"{text[:most]}{mark}"


def _end(text: str, most: int = MOST_TEXT) -> str:
    text = _writable(text)
    return text if len(text) <= most else f"... {text[-most:]}"


def _writable(text: str) -> str:
    """Without halves of surrogate pairs, which no file can hold."""
    return str(text).encode("utf-8", "replace").decode()


def _texts(texts: Mapping[str, str], mark: str = " ...") -> dict[str, Json]:
    return {_start(name, 80): _start(text, mark=mark) for name, text in list(texts.items())[:MOST_TEXTS]}


def _numbers(values: Mapping[str, float]) -> dict[str, Json]:
    return {name: _number(value) for name, value in list(values.items())[:MOST_TEXTS]}


def _number(value: float | None) -> Json:
    """With six figures, which are the same on any number of ranks; JSON has no NaN."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _recovery(sequences: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    first = sequences[0] if sequences else ""
    return {
        name: sum(a == b for a, b in zip(first, other)) / len(first)
        for name, other in zip(names[1:], sequences[1:])
        if first
    }
