"""What a row of samples.jsonl holds of each kind, and how much."""

import json

import pytest

from samestep import samples
from samestep.train.record.samples import KINDS, MOST_HITS, MOST_TEXT, TYPES, Sample, as_cells, as_text

LONG = "a" * 9000
EVERY: list[Sample] = [
    samples.Text("an answer", "a question"),
    samples.Pair({"human": "one", "policy": "two"}, "a prompt", ["human", None], {"human": 0.25}),
    samples.Alignment({"native": "MKV", "policy": "MKA"}, "a protein"),
    samples.Hits("a query", [samples.Hit("a passage", 0.5, True, {"teacher": 2})]),
    samples.Explanation("before", "token", "what it says", 0.125),
    samples.Image(None, "a picture"),
]


@pytest.mark.parametrize("sample", EVERY, ids=lambda sample: sample.kind)
def test_a_row_has_the_fields_of_its_kind(sample: Sample) -> None:
    row = json.loads(json.dumps(sample.fields()))
    row |= {"image": "a.png"} if sample.kind == "image" else {}
    assert {name: type(value) for name, value in row.items()} == dict(TYPES[sample.kind])


def test_every_kind_is_declared() -> None:
    assert [kind.kind for kind in KINDS] == list(TYPES) == [sample.kind for sample in EVERY]


def test_long_texts_and_lists_are_cut() -> None:
    text = samples.Text("x" + LONG, LONG + "y").fields()
    assert text["text"].startswith("x") and text["prompt"].endswith("y"), "the end of a prompt is what is continued"
    assert max(map(len, text.values())) <= MOST_TEXT + 4
    many = samples.Hits("q", [samples.Hit(LONG, float("nan"))] * 99).fields()["hits"]
    assert len(many) == MOST_HITS and many[0]["score"] is None
    assert len(samples.Alignment({"a": LONG, "b": LONG}).fields()["sequences"]["b"]) == MOST_TEXT
    assert samples.Text("half \ud800 a pair").fields()["text"] == "half ? a pair"


def test_recovery_is_counted_unless_it_is_given() -> None:
    sequences = {"native": "MKVA", "policy": "MKAA", "reference": "AAAA"}
    assert samples.Alignment(sequences).fields()["recovery"] == {"policy": 0.75, "reference": 0.25}
    assert samples.Alignment(sequences, recovery={"policy": 0.5}).fields()["recovery"] == {"policy": 0.5}


def test_a_row_as_cells_and_as_text() -> None:
    row = {"stage": "fit", "step": 3, "name": "pairs", "kind": "pair", **EVERY[1].fields()}
    assert as_cells(row) == {
        "prompt": "a prompt",
        "human": "one",
        "policy": "two",
        "verdicts": "human\nNone",
        "scores human": 0.25,
    }
    assert as_text(EVERY[3].fields()) == "query: a query\nhits: 1. (0.5, relevant, teacher 2) a passage"
