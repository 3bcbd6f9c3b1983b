"""The English text that comes with Python: the topics of its built-in help, which differ a little between versions."""

import re
from collections.abc import Iterator
from functools import cache

from samestep.core.errors import UserError

BUILT_IN_TEXT = "pydoc_data.topics"
"""What this text is called."""
PROSE = "pydoc-prose"
"""What its sentences are called, without programs, tables and grammar."""
LONGEST_REPEAT = 80
"""A passage that shares a run of this many characters with an earlier one is a repetition of it."""
EMPHASIS = re.compile(r"(\*{1,2})(\w(?:[^*]*[\w:.])?)\1")
"""*One* word or **several words** with emphasis."""
LETTERS = re.compile(r"[^\W\d_]+")
LEAST_WORDS = 0.9
"""Share of letters and spaces in a passage of sentences, at least."""


def pydoc_topics() -> list[tuple[str, str]]:
    """Every topic with its text, in alphabetical order."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError("Name your data with data.path; this Python comes without pydoc_data.topics.") from None
    return sorted(topics.items())


def pydoc_text(limit: int | None = None) -> str:
    """The topics of Python's built-in help in alphabetical order, each passage once, until `limit` is reached."""
    kept: list[str] = []
    size = 0
    for passage in distinct(passage for _, topic in pydoc_topics() for passage in passages(topic)):
        kept.append(passage)
        size += len(passage)
        if limit is not None and size >= limit:
            break
    return "\n\n".join(kept) + "\n"


@cache
def pydoc_prose() -> tuple[str, ...]:
    """The passages of the same text that are sentences, each as one line without marks of emphasis and lists, in
    alphabetical order of their topics."""
    every = distinct(passage for _, topic in pydoc_topics() for passage in passages(topic))
    lines = (EMPHASIS.sub(r"\2", " ".join(passage.split()).removeprefix("* ")) for passage in every)
    return tuple(line for line in lines if _is_prose(line))


def _is_prose(line: str) -> bool:
    """Whether nearly all of it are words, as in no program, table or grammar, and it ends as a sentence does."""
    words = line.count(" ") + sum(map(len, LETTERS.findall(line)))
    is_program = "::=" in line or ">>>" in line
    return line.endswith((".", ":")) and words > LEAST_WORDS * len(line) and line.count(" ") >= 5 and not is_program


def passages(topic: str) -> Iterator[str]:
    """The parts of a topic that empty lines separate."""
    for passage in re.split(r"\n(?:[ \t]*\n)+", topic):
        if passage.strip():
            yield passage.strip("\n").rstrip()


def distinct(passages: Iterator[str]) -> Iterator[str]:
    """Leave out passages that repeat an earlier one, completely or for long, however they are indented or wrapped.

    Topics quote each other, and a text that is in both regions would make validation meaningless.
    """
    complete: set[str] = set()
    runs: set[str] = set()
    for passage in passages:
        flat = " ".join(passage.split())
        here = {flat[i : i + LONGEST_REPEAT] for i in range(len(flat) - LONGEST_REPEAT + 1)}
        if flat in complete or not runs.isdisjoint(here):
            continue
        complete.add(flat)
        runs |= here
        yield passage
