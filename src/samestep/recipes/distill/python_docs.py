"""A retrieval task from the text that comes with Python: what its sections are about, and their paragraphs.

A section is a heading, or an entry such as `str.count(sub[, start[, end]])`, with the text that belongs to it alone. A
query is the title of a section, whose answers are its paragraphs, or a title with the subject of one paragraph's first
sentence, whose answer is that paragraph. Which sections are held out is decided by a hash of what their queries begin
with, so a section is on the same side in every version of Python.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

from samestep.data.pydoc_topics import distinct, passages, pydoc_topics
from samestep.recipes.distill.records import Record
from samestep.recipes.distill.retrieval import RetrievalSet

T = TypeVar("T")
HELD_OUT = 0.25
"""The share of the sections whose queries are not trained on."""
LONGEST_PASSAGE = 300
"""Characters of a passage; a longer paragraph becomes several, each of whole sentences."""
_SENTENCE = re.compile(r"(?<=[.?!:;])(?<!e\.g\.)(?<!i\.e\.) (?=[A-Z\"*“(])")
_LONGEST_SUBJECT = 8
_UNFINISHED = (",", "also", "always", "and", "only", "that", "which")
_VERB = re.compile(
    r" (is|are|was|were|has|have|had|can|cannot|may|might|must|will|should|does|do|allows?|returns?|raises?|takes?|"
    r"gives?|uses?|provides?|defines?|specifies|specify|evaluates?|supports?|matches|applies|contains?|determines?|accepts?|"
    r"creates?|represents?|causes?) "
)
_NO_SUBJECT = re.compile(
    r"(If|When|For|In|On|Note|Changed|New|Deprecated|See|This|These|That|It|They|There|Since|As|Once|You|While|After|To|At|"
    r"By|With|But|However|Otherwise|Here|What|Although|Also|First|Like|Unlike|Return|Called|\*\*)\b"
)
_HEADING = re.compile(r"(\S.*)\n([*=\-~^])\2{2,}")
_LEVELS = "*=-~^"
_LIST_MARK = re.compile(r"^(\*|\d+\.|\[\d+\]) ")
_MARK = re.compile(r"\*{1,2}(\w[^*]*)\*{1,2}")
_SENTENCE_START = re.compile(r"[A-Z\"*“(]")
_SENTENCE_END = re.compile(r"[.:;?!][\"\u201d\u2019)\]]*( \[\d+\])?$")
_KIND = re.compile(r"^(class|classmethod|static|exception|coroutine|async) ")
_FEWEST_WORDS = 6
_MOST_WORDS_OF_ENTRY = 12
_STEP = 3
"""How far the text of an entry is indented."""


@dataclass
class Section:
    """A part of the documentation."""

    titles: tuple[str, ...]
    """What it is about; an entry may have several signatures."""
    inside: str
    """The title of the section around it; empty if there is none."""
    indent: int
    """How far an entry is indented; -1 for a heading."""
    paragraphs: list[str] = field(default_factory=list)


@cache
def python_docs() -> tuple[list[Record], RetrievalSet]:
    """Training records, and a retrieval set whose queries are about other sections; its corpus has all passages.

    They are made once, since every stage asks for them; nobody changes them.
    """
    passages: dict[str, int] = {}
    trained: dict[str, list[int]] = {}
    held_out: dict[str, list[int]] = {}
    for section in doc_sections(pydoc_topics()):
        names = [_query(section, title) for title in section.titles]
        answers = held_out if _is_held_out(names[0]) else trained
        for paragraph in section.paragraphs:
            numbers = [passages.setdefault(part, len(passages)) for part in _parts(paragraph)]
            for query in (*names, *(f"{names[0]}: {subject}" for subject in _subjects(paragraph, section))):
                answers.setdefault(query, []).extend(numbers)
    corpus = list(passages)
    records = [Record(query, corpus[number]) for query, numbers in trained.items() for number in dict.fromkeys(numbers)]
    return records, RetrievalSet(list(held_out), corpus, [dict.fromkeys(numbers, 1.0) for numbers in held_out.values()])


def _is_held_out(query: str) -> bool:
    """Decided by what a query begins with: a title, or that of the section around it."""
    digest = hashlib.sha256(query.split(": ")[0].lower().encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT * 2**32


def _query(section: Section, title: str) -> str:
    """The title, with that of the section around it where it says too little alone."""
    is_entry = section.indent >= 0
    says_enough = "." in title.split("(")[0] if is_entry else len(title.split()) > 1
    return title if says_enough or not section.inside else f"{section.inside}: {title}"


def _subjects(paragraph: str, section: Section) -> Iterator[str]:
    """What stands before the verb of the first sentence, if that is short and says more than the section's title."""
    sentence = _SENTENCE.split(paragraph)[0]
    verb = _VERB.search(sentence)
    if verb is None or _NO_SUBJECT.match(sentence):
        return
    subject = unmarked(sentence[: verb.start()])
    is_short = len(subject.split()) <= _LONGEST_SUBJECT
    if is_short and not subject.endswith(_UNFINISHED) and subject.lower() not in section.titles[0].lower():
        yield subject


def _parts(paragraph: str) -> Iterator[str]:
    part = ""
    for sentence in _SENTENCE.split(paragraph):
        if part and len(part) + 1 + len(sentence) > LONGEST_PASSAGE:
            yield part
            part = sentence
        else:
            part = f"{part} {sentence}".strip()
    yield part


def doc_sections(topics: Sequence[tuple[str, str]]) -> list[Section]:
    """All sections that have paragraphs; what topics repeat of each other is in the first of them only."""
    found = [section for _, text in topics for section in _sections(text)]
    every = (paragraph for section in found for paragraph in section.paragraphs)
    left = dict.fromkeys(distinct(every))
    for section in found:
        section.paragraphs = [text for text in section.paragraphs if text in left and left.pop(text, "") is None]
    return [section for section in found if section.paragraphs]


def unmarked(text: str) -> str:
    """A text without the marks of code and emphasis."""
    return " ".join(_MARK.sub(r"\1", text.replace('"', "")).split())


@dataclass(frozen=True)
class _Block:
    """Lines without an empty one between them."""

    lines: tuple[str, ...]

    @property
    def indent(self) -> int:
        return _indent(self.lines[0])

    @property
    def text(self) -> str:
        return _LIST_MARK.sub("", " ".join(" ".join(self.lines).split()))

    @property
    def is_prose(self) -> bool:
        """Whether this is a sentence or several, and neither code nor grammar nor a table."""
        text = self.text
        return bool(
            len(text.split()) >= _FEWEST_WORDS
            and "::=" not in text
            and _SENTENCE_START.match(text)
            and _SENTENCE_END.search(text)
        )

    def is_entry(self, following: "_Block | None") -> bool:
        """Whether these are signatures, and what follows explains them."""
        return (
            following is not None
            and following.is_prose
            and following.indent >= self.indent + _STEP
            and all(_indent(line) == self.indent for line in self.lines)
            and all(len(line.split()) <= _MOST_WORDS_OF_ENTRY for line in self.lines)
            and not self.text.endswith((".", ":", ","))
        )


def _blocks(passage: str) -> Iterator[_Block]:
    """A passage as one block, or as two if its first line is a term that the other lines explain."""
    first, *rest = passage.split("\n")
    if rest and not _LIST_MARK.match(first.strip()) and all(_indent(line) >= _indent(first) + _STEP for line in rest):
        yield _Block((first,))
        yield _Block(tuple(rest))
    else:
        yield _Block((first, *rest))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _sections(text: str) -> Iterator[Section]:
    blocks = [block for passage in passages(text) for block in _blocks(passage)]
    headings: dict[int, str] = {}
    around: list[Section] = []
    for block, following in zip(blocks, [*blocks[1:], None]):
        if heading := _HEADING.fullmatch("\n".join(block.lines)):
            level, title = _LEVELS.index(heading[2]), unmarked(heading[1])
            headings = {higher: name for higher, name in headings.items() if higher < level}
            around = [Section((title,), list(headings.values())[-1] if headings else "", indent=-1)]
            headings[level] = title
            yield around[0]
            continue
        around = [section for section in around if section.indent < block.indent]
        if block.is_entry(following):
            titles = tuple(line.strip() if "(" in line else unmarked(line) for line in block.lines)
            around.append(Section(titles, _name(around[-1]) if around else "", block.indent))
            yield around[-1]
        elif block.is_prose and around:
            around[-1].paragraphs.append(block.text)


def _name(section: Section) -> str:
    """A heading, or what an entry defines, without its arguments."""
    title = section.titles[0]
    return title if section.indent < 0 else _KIND.sub("", title).split("(")[0]


def spread(values: Sequence[T], limit: int | None) -> list[T]:
    """At most `limit` of these, spread evenly: neighbours in the documentation are about the same thing."""
    if limit is None or limit >= len(values):
        return list(values)
    return [values[number * len(values) // limit] for number in range(limit)]


def some_queries(found: RetrievalSet, limit: int | None) -> RetrievalSet:
    """A small retrieval set for a quick trial: some queries, and the passages that answer them."""
    if limit is None:
        return found
    chosen = spread(range(len(found.queries)), limit)
    passages = sorted({passage for query in chosen for passage in found.relevant[query]})
    numbers = {passage: number for number, passage in enumerate(passages)}
    return RetrievalSet(
        [found.queries[query] for query in chosen],
        [found.passages[passage] for passage in passages],
        [{numbers[passage]: grade for passage, grade in found.relevant[query].items()} for query in chosen],
    )
