"""The sections of Python's documentation: what each is about, and its paragraphs of prose.

A section is a heading, or an entry such as `str.count(sub[, start[, end]])`, with the text that belongs to it alone.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from samestep.data.pydoc_topics import distinct, passages

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
    """The sections of a topic, in their order."""
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
