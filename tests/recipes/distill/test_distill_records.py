"""Records under the names that people give their columns; whatever is wrong with a file is said at once."""

import json
from pathlib import Path
from typing import Any

import pytest

from samestep import UserError
from samestep.recipes.distill.config import DataConfig, DistillConfig
from samestep.recipes.distill.data import IndexedRecord, TextTable, load_data
from samestep.recipes.distill.records import Record, read_records, read_records_or_texts


def jsonl(path: Path, *rows: Any) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("row", "records"),
    [
        ({"query": "q", "passage": "p"}, [Record("q", "p")]),
        ({"query": "q", "positive": "p", "negative": "n"}, [Record("q", "p", ("n",))]),
        ({"query": "q", "positive": "p", "negatives": ["n", "m", "n"]}, [Record("q", "p", ("n", "m"))]),
        ({"anchor": "q", "positive": "p", "negative": "n"}, [Record("q", "p", ("n",))]),
        ({"anchor": "q", "positive": "p"}, [Record("q", "p")]),
        ({"question": "q", "answer": "p", "_id": 7, "source": "web", "score": 0.5}, [Record("q", "p")]),
        ({"query": "q", "pos": ["p", "o"], "neg": ["n"]}, [Record("q", "p", ("n",)), Record("q", "o", ("n",))]),
        ({"query": "q", "positive": "p", "negative_10": "c", "negative_2": "b"}, [Record("q", "p", ("b", "c"))]),
        ({"query": "q", "positive": "p", "negative": None}, [Record("q", "p")]),
        ({"query": "q", "title": "T", "passage": "p"}, [Record("q", "T p")]),
        ({"query": "q", "title": " ", "pos": ["p", "o"]}, [Record("q", "p"), Record("q", "o")]),
        ({"query": "q", "title": "T", "passage": {"title": "U", "text": "p"}}, [Record("q", "U p")]),
        ({"query": "q", "positive": "p", "negatives": []}, [Record("q", "p")]),
        (
            {
                "query_id": "1",
                "query": "q",
                "positive_passages": [{"docid": "7", "title": "T", "text": "p"}],
                "negative_passages": [{"docid": "8", "title": "", "text": "n"}, {"docid": "9", "text": "m"}],
            },
            [Record("q", "T p", ("n", "m"))],
        ),
    ],
)
def test_the_columns_that_people_have(row: dict[str, Any], records: list[Record], tmp_path: Path) -> None:
    assert read_records(jsonl(tmp_path / "a.jsonl", row)) == records
    assert read_records(str(tmp_path / "a.jsonl"), limit=1) == records[:1]


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "parquet", "folder"])
def test_every_kind_of_file(kind: str, tmp_path: Path) -> None:
    rows = [{"query": f"q {n}", "positive": f"p {n}", "negative": f"n, {n}"} for n in range(3)]
    path = tmp_path / f"a.{kind}"
    if kind == "json":
        path.write_text(json.dumps(rows))
    elif kind in ("csv", "tsv"):
        cut = {"csv": ",", "tsv": "\t"}[kind]
        path.write_text(
            "\n".join(cut.join(f'"{text}"' for text in line) for line in [rows[0], *(r.values() for r in rows)])
        )
    else:
        datasets = pytest.importorskip("datasets")
        dataset = datasets.Dataset.from_list([{**row, "negative": [row["negative"]]} for row in rows])
        dataset.save_to_disk(path) if kind == "folder" else dataset.to_parquet(path)
    assert read_records(str(path)) == [Record(f"q {n}", f"p {n}", (f"n, {n}",)) for n in range(3)]
    assert len(read_records(str(path), limit=2)) == 2


def test_an_empty_cell_is_no_negative(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("query,positive,negative_1,negative_2\nq,p,n,\nr,p,,\n")
    assert read_records(str(path)) == [Record("q", "p", ("n",)), Record("r", "p")]
    path.write_text("query,positive\nq,\n")
    with pytest.raises(UserError, match=r"row 1 \(line 2\): 'positive' is missing"):
        read_records(str(path))


def test_all_problems_at_once(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "a.jsonl",
        {"query": "q", "positive": "p", "negatives": ["n"]},
        {"query": " ", "positive": "p"},
        {"positive": 3, "query": "q"},
        '{"query": "q", ',
        {"query": "q", "positive": []},
        {"query": "q", "positive": "p", "negatives": ["n", "", None]},
        {"query": "q", "positive": "p", "negatives": "n"},
        {"query": "q", "positive": "p", "negatives": ["p"]},
        {"positive": "p"},
        ["q", "p"],
    )
    with pytest.raises(UserError) as caught:
        read_records(path)
    listed = (
        "line 2: 'query' is empty",
        "line 3: 'positive' is no text but 3",
        "line 4: it is not JSON: Expecting property name enclosed in double quotes at column 16",
        "line 5: 'positive' has no text",
        "line 6: 'negatives' is empty, 'negatives' is missing",
        "line 7: 'negatives' is a text, not a list of texts; call the column 'negative', or negative_1, negative_2",
        "line 8: a text is 'positive' and negative at once",
        "line 9: 'query' is missing",
        'line 10: it is no JSON object such as {"text": ...}',
    )
    assert str(caught.value).splitlines()[1:] == [f"  {line}" for line in listed]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"query": "q", "anchor": "a", "passage": "p"}, "one column of the names query, .*; it has 'query', 'anchor'"),
        ({"query": "q", "passage": "p", "positive": "o"}, "it has 'passage', 'positive'"),
        ({"text": "q", "passage": "p"}, "it has 'text', 'passage'"),
        ({"query": "q", "positive": "p", "negative": "n", "neg": ["n"]}, "one kind of negatives .* 'negative', 'neg'"),
        ({"query": "q", "positive": "p", "negative_1": "n", "neg": ["n"]}, "one kind of negatives"),
        (
            {"query": "", "positive": "p", "negtive": "n", "extra": 1},
            "line 1: the column 'negtive' is not known; write 'negative', or set data.columns.negative=negtive",
        ),
    ],
)
def test_columns_that_are_not_clear(row: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        read_records(jsonl(tmp_path / "a.jsonl", row))


def test_a_table_has_every_text_once() -> None:
    records = [Record("q", "a", ("b", "c")), Record("r", "b"), Record("q", "c", ("q",))]
    table = TextTable.of(records)
    assert table.queries == ["q", "r"] and table.passages == ["a", "b", "c", "q"]
    assert table.rows == [IndexedRecord(0, 0, (1, 2)), IndexedRecord(1, 1), IndexedRecord(0, 2, (3,))]
    again = [
        Record(table.queries[row.query], table.passages[row.positive], tuple(table.passages[n] for n in row.negatives))
        for row in table.rows
    ]
    assert again == records


@pytest.mark.parametrize(
    ("row", "scores"),
    [
        ({"pos": ["p"], "neg": ["n", "m"], "pos_scores": [0.9], "neg_scores": [0.2, 0.1]}, (0.9, 0.2, 0.1)),
        ({"pos": ["p"], "neg": ["n", "n"], "pos_scores": [0.9], "neg_scores": [0.2, 0.1]}, (0.9, 0.2)),
        ({"positive": "p", "negative": "n", "label": 3.5}, (0.0, -3.5)),
        ({"positive": "p", "negative": "n", "score": [2, -1]}, (2.0, -1.0)),
        ({"positive": "p", "negative_1": "n", "negative_2": "m", "label": [1, 2]}, (0.0, -1.0, -2.0)),
        ({"positive": "p", "negatives": ["n", "m"], "scores": [3, 2, 1]}, (3.0, 2.0, 1.0)),
    ],
)
def test_scores(row: dict[str, Any], scores: tuple[float, ...], tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"query": "q", **row})
    assert [record.scores for record in read_records(path, scored=True)] == [scores]
    assert [record.scores for record in read_records(path)] == [()]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (
            {"positive": "p", "negative": "n"},
            "Give .* scores: pos_scores and neg_scores, or one of scores, score, label",
        ),
        ({"pos": ["p"], "neg": ["n"], "pos_scores": [1], "neg_scores": []}, "'neg_scores' has 0 scores for 1 texts"),
        ({"positive": "p", "negative": "n", "score": "high"}, "'score' is neither a number nor a list of numbers"),
        ({"positive": "p", "negative": "n", "score": [1, 2, 3]}, "'score' has 3 scores for 1 positives and 1 neg"),
    ],
)
def test_scores_that_do_not_fit(row: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        read_records(jsonl(tmp_path / "a.jsonl", {"query": "q", **row}), scored=True)


def test_scores_that_are_not_used_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"query": "q", "pos": ["p"], "neg": ["n"], "pos_scores": [1], "neg_scores": [0]})
    read_records(path)
    assert "columns that are not used: 'pos_scores', 'neg_scores'" in caplog.text


def beir(folder: Path, **splits: str) -> Path:
    (folder / "qrels").mkdir(parents=True)
    jsonl(folder / "corpus.jsonl", *({"_id": f"d{n}", "title": "T", "text": f"p{n}"} for n in range(3)))
    jsonl(folder / "queries.jsonl", *({"_id": f"q{n}", "text": f"q{n}"} for n in range(3)))
    for split, lines in splits.items():
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    return folder


def test_folders_as_beir_has_them(tmp_path: Path) -> None:
    both = beir(tmp_path / "both", train="q0\td0\t1\nq0\td1\t2\nq1\td2\t0\n", dev="q1\td1\t1\n")
    assert read_records(str(both)) == [Record("q0", "T p0"), Record("q0", "T p1")]
    assert read_records(str(both / "qrels" / "dev.tsv")) == [Record("q1", "T p1")]
    assert read_records(str(beir(tmp_path / "one", test="q2\td2\t1\n"))) == [Record("q2", "T p2")]
    with pytest.raises(UserError, match=r"such as .*dev\.tsv, .*test\.tsv; it has none called train"):
        read_records(str(beir(tmp_path / "other", test="q2\td2\t1\n", dev="q2\td2\t1\n")))


def test_queries_of_a_validation_set_are_not_trained_on(tmp_path: Path) -> None:
    """Though its passages may be."""
    path = jsonl(tmp_path / "records.jsonl", *({"query": f"q{n}", "passage": f"T p{n}"} for n in range(3)))
    held_out = beir(tmp_path / "held-out", test="q1\td1\t1\n")
    data = load_data(DistillConfig(data=DataConfig(train=path, validation=str(held_out))))
    assert data.table.queries == ["q0", "q2"] and data.held_out.queries == ["q1"]
    assert "T p1" in data.held_out.passages
    only = jsonl(tmp_path / "only.jsonl", {"query": "q1", "passage": "T p1"})
    with pytest.raises(UserError, match=r"data\.train other queries than data\.validation"):
        load_data(DistillConfig(data=DataConfig(train=[path, only], validation=str(held_out))))


def test_a_title_is_used_and_not_named_as_unused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = jsonl(tmp_path / "titles.jsonl", {"query": "q", "title": "T", "passage": "p"})
    assert read_records(path) == [Record("q", "T p")] and not caplog.text
    path = jsonl(tmp_path / "more.jsonl", {"query": "q", "title": "T", "passage": "p", "negative": "n"})
    assert read_records(path) == [Record("q", "T p", ("n",))]
    assert "'title' stands before 'passage'; negatives that are texts have no title" in caplog.text
    path = jsonl(tmp_path / "two.jsonl", {"query": "q", "title": "T", "pos": ["p", "o"]})
    with pytest.raises(UserError, match="'title' is one title for 2 texts in 'pos'; give each as an object with both"):
        read_records(path)
    with pytest.raises(UserError, match="'title' is no text but 7"):
        read_records(jsonl(tmp_path / "number.jsonl", {"query": "q", "title": 7, "passage": "p"}))


def test_single_texts_or_records(tmp_path: Path) -> None:
    texts = [{"text": "a"}, {"text": "b", "title": "T"}, {"_id": "7", "text": "c", "title": ""}]
    assert read_records_or_texts(jsonl(tmp_path / "texts.jsonl", *texts)) == ["a", "T b", "c"]
    records = jsonl(tmp_path / "records.jsonl", {"query": "q", "passage": "p", "text": "x"})
    assert read_records_or_texts(records) == [Record("q", "p")]
    with pytest.raises(UserError, match="'text' is missing"):
        read_records_or_texts(jsonl(tmp_path / "bad.jsonl", {"text": "a"}, {"title": "T"}))
    with pytest.raises(UserError, match="one column of the names query, anchor, question"):
        read_records_or_texts(jsonl(tmp_path / "other.jsonl", {"words": "a"}))
