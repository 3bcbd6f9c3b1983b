"""A retrieval task from the text that comes with Python: what its sections are about, and their paragraphs.

A query is the title of a section, whose answers are its paragraphs, or a title with the subject of one paragraph's
first sentence, whose answer is that paragraph. Which sections are held out is decided by a hash of what their queries
begin with, so a section is on the same side in every version of Python.
"""

import hashlib
import re
from collections.abc import Iterator

from samestep.data.pydoc_topics import pydoc_topics
from samestep.recipes.distill.doc_sections import Section, doc_sections, unmarked
from samestep.recipes.distill.records import Record
from samestep.recipes.distill.retrieval_set import RetrievalSet

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


def python_docs() -> tuple[list[Record], RetrievalSet]:
    """Training records, and a retrieval set whose queries are about other sections; its corpus has all passages."""
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
