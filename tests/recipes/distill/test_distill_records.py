"""Records under the names that people give their columns; whatever is wrong with a file is said at once."""

import json
from pathlib import Path
from typing import Any

import pytest

from samestep import UserError
from samestep.recipes.distill.data import IndexedRecord, TextTable
from samestep.recipes.distill.records import Record, read_records


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
        ({"query": "q", "positive": "p", "negatives": []}, [Record("q", "p")]),
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
