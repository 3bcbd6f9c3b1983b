"""The retrieval set of Python's documentation, and folders of BEIR."""

import json
from pathlib import Path

import pytest

from samestep import UserError
from samestep.recipes.distill.evaluation import rank_by_bm25
from samestep.recipes.distill.python_docs import LONGEST_PASSAGE, doc_sections, python_docs
from samestep.recipes.distill.records import Record
from samestep.recipes.distill.retrieval import RetrievalSet, read_beir

TOPIC = """
Basic *customization*
*********************

These methods are for every object:

   class Sample: pass

object.__lt__(self, other)
object.__le__(self, other)

   These are the so-called "rich comparison" methods.

   A method may return "NotImplemented". The operator "in" is not one of them.

Here the text goes on, after the entries.

class dict(**kwargs)

   Return a new dictionary made of the arguments.

   clear()

      Remove all items from the dictionary, whatever they are.


Overview
========

term
   This says in a sentence what the term is.

* An item of a list is a paragraph too.
"""


@pytest.fixture(scope="module")
def docs() -> tuple[list[Record], RetrievalSet]:
    return python_docs()


def test_sections_are_headings_and_entries() -> None:
    again = (
        "again",
        "Other\n*****\n\nHere the text goes on, after the entries.\n\nThis sentence is new in this topic.\n",
    )
    found = doc_sections([("sample", TOPIC.strip("\n")), again])
    rich = 'These are the so-called "rich comparison" methods.'
    assert [(section.titles, section.inside, section.paragraphs) for section in found] == [
        (
            ("Basic customization",),
            "",
            ["These methods are for every object:", "Here the text goes on, after the entries."],
        ),
        (
            ("object.__lt__(self, other)", "object.__le__(self, other)"),
            "Basic customization",
            [rich, 'A method may return "NotImplemented". The operator "in" is not one of them.'],
        ),
        (("class dict(**kwargs)",), "Basic customization", ["Return a new dictionary made of the arguments."]),
        (("clear()",), "dict", ["Remove all items from the dictionary, whatever they are."]),
        (("Overview",), "Basic customization", ["An item of a list is a paragraph too."]),
        (("term",), "Overview", ["This says in a sentence what the term is."]),
        (("Other",), "", ["This sentence is new in this topic."]),
    ]


def test_the_docs_are_enough_to_train_and_to_measure(docs: tuple[list[Record], RetrievalSet]) -> None:
    records, held_out = docs
    assert len({record.query for record in records}) >= 600
    assert len(held_out.queries) >= 150 and len(held_out.passages) >= 1500
    assert len(set(held_out.queries)) == len(held_out.queries) and len(set(held_out.passages)) == len(held_out.passages)
    assert {record.positive for record in records} < set(held_out.passages)
    lengths = [len(passage) for passage in held_out.passages]
    assert sum(length > LONGEST_PASSAGE for length in lengths) < 20  # single sentences
    assert "str.casefold()" in held_out.queries
    assert python_docs.__wrapped__() == docs, "the same every time"


def test_what_is_held_out_was_not_trained_on(docs: tuple[list[Record], RetrievalSet]) -> None:
    records, held_out = docs
    headings = {record.query.split(": ")[0] for record in records}
    assert headings.isdisjoint(query.split(": ")[0] for query in held_out.queries)
    answers = {held_out.passages[number] for relevant in held_out.relevant for number in relevant}
    assert len(answers & {record.positive for record in records}) <= len(answers) // 50  # short sentences that recur


def test_words_alone_find_some_of_it(docs: tuple[list[Record], RetrievalSet]) -> None:
    _, held_out = docs
    found = held_out.metrics(rank_by_bm25(held_out.queries, held_out.passages, 100))
    print(f"BM25 on the documentation of this Python: {found}")
    assert 0.3 < found["ndcg@10"] < 0.6 and found["recall@1"] < found["recall@10"] < found["recall@100"] < 1


CORPUS = [
    {"_id": "d1", "title": "Moon", "text": "It is round."},
    {"_id": "d2", "text": "Cheese is yellow."},
    {"_id": "d3", "title": "", "text": ""},
    {"_id": "q2", "title": "Argument", "text": "A claim."},
]
QUERIES = [{"_id": "q1", "text": "moon"}, {"_id": "q2", "text": "claim"}, {"_id": "q3", "text": "only in train"}]
QRELS = "query-id\tcorpus-id\tscore\nq2\td2\t1\nq1\td1\t2\nq1\td2\t0\n"


def beir(folder: Path, corpus: list[dict[str, str]] = CORPUS, qrels: str = QRELS) -> Path:
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", corpus), ("queries", QUERIES)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels" / "test.tsv").write_text(qrels)
    return folder


def test_a_folder_of_beir(tmp_path: Path) -> None:
    found = read_beir(beir(tmp_path / "beir"))
    assert found.queries == ["moon", "claim"]
    assert found.passages == ["Moon It is round.", "Cheese is yellow.", "", "Argument A claim."]
    assert found.relevant == [{0: 2.0}, {1: 1.0}]
    assert found.itself == {1: 3}
    ranked = [[0, 1], [3, 1, 0]]  # the second query finds itself first, which does not count
    assert found.metrics(ranked, ks=(1,)) == {"ndcg@10": 1.0, "mrr@10": 1.0, "recall@1": 1.0}


@pytest.mark.parametrize("missing", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_a_folder_without_a_file(missing: str, tmp_path: Path) -> None:
    folder = beir(tmp_path / "beir")
    (folder / missing).rename(folder / "other")
    with pytest.raises(UserError, match=f"has no {missing}, but .*other"):
        read_beir(folder)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no corpus\.jsonl, but no file"):
        read_beir(tmp_path / "none")


@pytest.mark.parametrize(
    ("corpus", "sentence"),
    [
        ([{"_id": "d1", "text": "a"}, {"_id": "d1", "text": "b"}], "line 2: the '_id' 'd1' comes twice"),
        ([{"text": "a"}, {"_id": 5, "text": "b"}], "line 1: '_id' is missing\n  line 2: '_id' is no text but 5"),
        ([{"_id": "d1"}, {"_id": "d2", "title": 4, "text": "a"}], "'text' is missing\n  line 2: 'title' is no text"),
    ],
)
def test_a_bad_corpus(corpus: list[dict[str, str]], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"(?s)corpus\.jsonl:\n.*{sentence}"):
        read_beir(beir(tmp_path / "beir", corpus=corpus))


@pytest.mark.parametrize(
    ("qrels", "sentence"),
    [
        ("q1\td1\t1\nq2\td2\t1\n", "the columns query-id, corpus-id, score, with tabs between; it has no query-id"),
        ("query-id corpus-id score\nq1 d1 1\n", "it has no query-id"),
        (
            QRELS + "q9\td9\tx\n",
            "queries.jsonl has no 'q9', corpus.jsonl has no 'd9', 'score' is no whole number but 'x'",
        ),
        (QRELS + "q1\td1\t1\n", "row 4 .line 5.: 'q1' and 'd1' come twice"),
        ("query-id\tcorpus-id\tscore\nq1\td1\t0\n", "a query with a score above 0; it has none"),
    ],
)
def test_bad_grades(qrels: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        read_beir(beir(tmp_path / "beir", qrels=qrels))
