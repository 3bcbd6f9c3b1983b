"""Training records: a query with a passage that answers it, and passages that do not.

Files may have the columns under the names that people give them: query, anchor or question; positive, passage, pos,
answer, document or positive_passages; negative, negatives, neg, negative_passages, or negative_1, negative_2 and so on.
Positives and negatives are texts, objects with `text` and perhaps `title`, or lists of these, and a record with several
positives is one record for each of them. A column title stands before its row's passage, as a title does everywhere:
title, a space, text. A folder as BEIR has them is records of its judged queries.

Scores, where they are wanted: pos_scores and neg_scores, a list each; or scores, score or label, which is a list for
the positive and each negative, or margins, the positive's lead over each negative.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samestep import UserError
from samestep.core.errors import quoted
from samestep.data.records.reading import ABSENT, Records, say_once, text_fault
from samestep.data.records.rows import Row
from samestep.recipes.distill.retrieval import find_beir, read_beir

QUERY = ("query", "anchor", "question")
POSITIVE = ("positive", "passage", "pos", "answer", "document", "positive_passages")
TITLE = "title"
NEGATIVE = ("negative", "negatives", "neg", "negative_passages")
SCORES = (("pos_scores", "neg_scores"), ("scores", "score", "label"))
_NUMBERED = re.compile(r"negative_\d+")


@dataclass(frozen=True)
class Record:
    """A query, a passage that answers it, and passages that do not."""

    query: str
    positive: str
    negatives: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    """Of the positive and of each negative, where the file's are wanted."""


def read_records(
    path: str,
    limit: int | None = None,
    columns: Mapping[str, str] | None = None,
    skip_invalid: bool = False,
    scored: bool = False,
) -> list[Record]:
    """The records of a file or folder, or the first `limit`; `scored` also reads their scores. What is wrong with any
    of them is said at once."""
    if (beir := find_beir(path, "train")) is not None:
        if scored:
            raise UserError(f"Set rank.scores=teacher, or name records with scores; {path} has none.")
        found = read_beir(*beir)
        return [
            Record(query, found.passages[passage])
            for query, relevant in zip(found.queries, found.relevant)
            for passage in relevant
        ][:limit]
    return _read(Records(path, columns, limit), skip_invalid, scored)[:limit]


def read_records_or_texts(
    path: str, limit: int | None = None, columns: Mapping[str, str] | None = None, skip_invalid: bool = False
) -> Sequence[Record | str]:
    """The same of a path whose rows may also be single texts: a column text, and perhaps a title."""
    if find_beir(path, "train") is not None:
        return read_records(path, limit)
    read = Records(path, columns, limit)
    if "text" not in read.columns or not {*QUERY, *POSITIVE}.isdisjoint(read.columns):
        return _read(read, skip_invalid)[:limit]
    read.expect(["text", TITLE])
    texts = []
    for row in read.rows:
        wrong: list[str] = []
        texts += _titled(row, "text", _texts(row, "text", wrong), wrong)
        if wrong:
            read.refuse(row, ", ".join(wrong))
    read.check(skip_invalid)
    return texts


def _read(read: Records, skip_invalid: bool, scored: bool = False) -> list[Record]:
    names = _Columns.of(read, scored)
    records = [record for row in read.rows for record in _records(read, row, names)]
    read.check(skip_invalid)
    if names.negatives and TITLE in read.columns:
        say_once(f"{read.path}: {TITLE!r} stands before {names.positive!r}; negatives that are texts have no title")
    return records


@dataclass(frozen=True)
class _Columns:
    """Which columns of a file are what."""

    query: str
    positive: str
    negatives: Sequence[str]
    scores: Sequence[str] = ()
    """Two: of positives and of negatives; one: of all, or margins; none: they are not wanted."""

    @classmethod
    def of(cls, read: Records, scored: bool) -> "_Columns":
        """Found by their names; those that are missing or ambiguous are refused."""
        names = read.columns
        numbered = sorted(filter(_NUMBERED.fullmatch, names), key=lambda name: int(name.split("_")[1]))
        listed = [name for name in names if name in NEGATIVE]
        if len(listed) + bool(numbered) > 1:
            raise UserError(f"Keep one kind of negatives in {read.path}; it has {quoted([*listed, *numbered])}.")
        scores = _score_columns(read) if scored else ()
        known = [QUERY, POSITIVE, (*NEGATIVE, *numbered), TITLE, *scores]
        read.expect(known, lists=[*POSITIVE, *NEGATIVE, *scores])
        query, positive = (_only(read, known) for known in (QUERY, POSITIVE))
        return cls(query, positive, [*numbered, *listed], scores)


def _score_columns(read: Records) -> Sequence[str]:
    names = read.columns
    if set(SCORES[0]) <= set(names):
        return SCORES[0]
    found = [name for name in names if name in SCORES[1]]
    if len(found) != 1:
        raise UserError(
            f"Give {read.path} scores: {' and '.join(SCORES[0])}, or one of {', '.join(SCORES[1])}; or set "
            f"rank.scores=teacher. It has {quoted(names)}."
        )
    return found


def _only(read: Records, known: Sequence[str]) -> str:
    names = read.columns
    found = [name for name in names if name in known]
    if len(found) != 1:
        read.check()  # a misspelt column says more
        raise UserError(
            f"Give {read.path} one column of the names {', '.join(known)}; it has {quoted(found or names)}."
        )
    return found[0]


def _records(read: Records, row: Row, columns: _Columns) -> Iterator[Record]:
    """The records of a row; what is wrong with it is kept."""
    wrong = [f"{columns.query!r} {fault}"] if (fault := text_fault(row.values.get(columns.query))) else []
    positives = _titled(row, columns.positive, _texts(row, columns.positive, wrong), wrong)
    if not positives and not wrong:
        wrong.append(f"{columns.positive!r} has no text")
    present = [name for name in columns.negatives if row.values.get(name) not in (None, [])]
    negatives = [text for name in present for text in _texts(row, name, wrong)]
    if not wrong and set(positives) & set(negatives):
        wrong.append(f"a text is {columns.positive!r} and negative at once")
    scores = _scores(row, columns.scores, len(positives), len(negatives), wrong) if columns.scores and not wrong else []
    if wrong:
        read.refuse(row, ", ".join(wrong))
        return
    # The first of equal texts counts.
    own = dict(zip(reversed(positives), reversed(scores[: len(positives)])))
    others = dict(zip(reversed(negatives), reversed(scores[len(positives) :])))
    unique = tuple(dict.fromkeys(negatives))
    for positive in dict.fromkeys(positives):
        scored = (own[positive], *(others[text] for text in unique)) if scores else ()
        yield Record(row.values[columns.query], positive, unique, scored)


def _scores(row: Row, columns: Sequence[str], positives: int, negatives: int, wrong: list[str]) -> list[float]:
    """Of all positives and then all negatives; what is wrong with them is added to `wrong`."""
    sizes = (positives, negatives) if len(columns) > 1 else None
    parts: list[list[float]] = []
    for number, column in enumerate(columns):
        value: Any = row.values.get(column)
        try:
            found = [float(each) for each in (value if isinstance(value, list) else [value])]
        except (TypeError, ValueError):
            found = [math.nan]
        if not all(map(math.isfinite, found)):
            wrong.append(f"{column!r} is neither a number nor a list of numbers")
        elif sizes and len(found) != sizes[number]:
            wrong.append(f"{column!r} has {len(found)} scores for {sizes[number]} texts")
        parts.append(found)
    if sizes or wrong:
        return [score for part in parts for score in part]
    (found,) = parts
    if positives == 1 and negatives and len(found) == negatives:
        return [0.0, *(-margin for margin in found)]
    if len(found) != positives + negatives:
        wrong.append(f"{columns[0]!r} has {len(found)} scores for {positives} positives and {negatives} negatives")
    return found


def _texts(row: Row, column: str, wrong: list[str]) -> list[str]:
    """The text or the texts of a column; what is wrong with them is added to `wrong`."""
    value: Any = row.values.get(column)
    if column == "negatives" and isinstance(value, str):
        wrong.append(
            "'negatives' is a text, not a list of texts; call the column 'negative', or negative_1, negative_2"
        )
        return []
    texts = list(map(_text, value if isinstance(value, list) else [value]))
    faults = [f"{column!r} {fault}" for text in texts if (fault := text_fault(text))]
    wrong += dict.fromkeys(faults)
    return [] if faults else texts


def _text(value: Any) -> Any:
    """The text of an object with one, behind its title."""
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        return value
    title = value.get(TITLE)
    return _behind(title, value["text"]) if isinstance(title, str) and title.strip() else value["text"]


def _titled(row: Row, column: str, texts: list[str], wrong: list[str]) -> list[str]:
    """The text of a column behind the row's title, unless it is an object, which may have one itself."""
    title, value = row.values.get(TITLE), row.values.get(column)
    values = value if isinstance(value, list) else [value]
    if not texts or (fault := text_fault(title)) in ABSENT or any(isinstance(each, dict) for each in values):
        return texts
    if fault:
        wrong.append(f"{TITLE!r} {fault}")
    elif len(texts) > 1:
        wrong.append(f"{TITLE!r} is one title for {len(texts)} texts in {column!r}; give each as an object with both")
    return [_behind(title, text) for text in texts]


def _behind(title: Any, text: str) -> str:
    return f"{title} {text}"
