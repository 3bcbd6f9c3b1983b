"""Files of every kind have the same rows, and say what is wrong in the same way."""

import builtins
import bz2
import csv
import gzip
import json
import logging
import lzma
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from samestep.core.errors import UserError
from samestep.data.records.reading import Records, edits, is_near

ROWS: list[dict[str, Any]] = [{"a": f'text {n}\nof "two" lines, été', "b": f"{n}"} for n in range(5)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows in the kind of file that the name says."""
    name = path.name.removesuffix(path.suffix) if path.suffix in PACKED else path.name
    if name.endswith((".csv", ".tsv")):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0].keys(), delimiter="\t" if name.endswith(".tsv") else ",")
            writer.writeheader()
            writer.writerows(rows)
    elif name.endswith(".json"):
        path.write_text(json.dumps(rows, indent=1))
    elif name.endswith((".jsonl", ".ndjson")):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    if path.suffix in PACKED:
        path.write_bytes(PACKED[path.suffix](path.read_bytes()))
    return path


def zstd(content: bytes) -> bytes:
    import pyarrow

    packed: bytes = pyarrow.compress(content, codec="zstd", asbytes=True)
    return packed


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}
PLAIN = ("a.csv", "a.tsv", "a.json", "a.jsonl", "a.ndjson")
KINDS = (*PLAIN, "a.parquet", *(f"{name}.gz" for name in PLAIN), "a.jsonl.bz2", "a.csv.xz", "a.jsonl.zst")


def read(path: Path, limit: int | None = None, **options: Any) -> Records:
    records = Records(str(path), limit=limit, **options)
    assert records.rows
    return records


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("limit", [None, 2, 9])
def test_every_kind_has_the_same_rows(name: str, limit: int | None, tmp_path: Path) -> None:
    before = csv.field_size_limit()
    records = read(write(tmp_path / name, ROWS), limit)
    assert [row.values for row in records.rows] == ROWS[:limit]
    assert records.columns == ["a", "b"] and not records.problems
    assert csv.field_size_limit() == before


def test_parquet_files_with_categories_bytes_and_times(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    named = pyarrow.array(["x", "y", "x"]).dictionary_encode()
    times = pyarrow.array([1, 2, 3], pyarrow.timestamp("ns"))  # which Python has no type for
    write_table(pyarrow.table({"a": named, "b": [b"1", b"2", b"3"], "c": times}), tmp_path / "a.parquet")
    records = read(tmp_path / "a.parquet")
    assert [row.values["a"] for row in records.rows] == ["x", "y", "x"]
    assert records.texts(records.rows[0], ["b", "c"]) is None
    with pytest.raises(UserError, match=r"row 1: 'b' is no text but \"binary\", 'c' is no text but \"timestamp"):
        records.check()


def test_a_limit_reads_no_further(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\nnot JSON\n')
    records = read(path, limit=2)
    records.check()
    assert len(records.rows) == 2


def test_a_dataset_in_a_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    one = datasets.Dataset.from_list(ROWS)
    one.with_format("torch").save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": one}).save_to_disk(tmp_path / "single")
    datasets.DatasetDict({"train": one, "test": one}).save_to_disk(tmp_path / "several")
    for folder in ("one", "single", "several/train"):
        assert [row.values for row in read(tmp_path / folder, 3).rows] == ROWS[:3]
    with pytest.raises(UserError, match=r"Name one split of .*several/train, .*several/test\."):
        read(tmp_path / "several")
    (tmp_path / "one" / "state.json").write_text("{}")
    with pytest.raises(UserError, match=r"Save the dataset in .* again"):
        read(tmp_path / "one")
    (tmp_path / "single" / "dataset_dict.json").write_text("[]")
    with pytest.raises(UserError, match="does not list its splits"):
        read(tmp_path / "single")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.json", b'[{"a": 1}, 2]', "record 2: it is no JSON object"),
        ("a.json", b'{"a": 1}\n{"a": \n', "line 2: it is not JSON"),
        ("a.json", b"[]", "has none"),
        ("a.json", b"[1,", "which is no JSON list"),
        ("a.parquet", b"PAR1 nothing", "Give another parquet file; .*a.parquet cannot be read after row 0"),
        ("a.jsonl.gz", b"not packed", "cannot be unpacked after line 0"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 100, mtime=0)[:-9], "cannot be unpacked after line"),
        ("a.json.gz", gzip.compress(b"[1,", mtime=0), "which is no JSON list"),
        ("a.zip", b"PK", "Give a file that ends with"),
        ("a.txt", b"text", r"Give a file that ends with \.jsonl, .*\.parquet \(all but .*\.gz.*; .*a.txt does not"),
    ],
)
def test_files_that_cannot_be_read(name: str, content: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        read(tmp_path / name).check()


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (b"[" * (1 << 20), r"Split the rows of .*a line has more than 64 MiB"),
        (
            b'{"a": "' + b"a" * (1 << 20) + b'"}\n',
            r"Unpack .* yourself if you trust it: .* more than 200 times as many",
        ),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz"])
def test_a_packed_file_does_not_fill_the_memory(name: str, row: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(row, mtime=0) * 100)
    began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=sentence):
        read(tmp_path / name)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began < 2 << 20, "KiB"


def test_a_folder_of_files(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    write(tmp_path / "more" / "b.parquet", ROWS[2:])
    write(tmp_path / "a.csv.gz", ROWS[:2])
    (tmp_path / "c.jsonl").write_text("no\n")
    (tmp_path / "README.txt").write_text("about it")
    records = read(tmp_path)
    assert [row.values for row in records.rows] == ROWS
    assert [row.where for row in records.rows][1:3] == ["row 2 (line 4) of a.csv.gz", "row 1 of more/b.parquet"]
    assert [file.path.name for file in records.origins()] == ["a.csv.gz", "c.jsonl", "b.parquet"]
    with pytest.raises(UserError, match=r"Fix 1 of 6 records of .*\n  line 1 of c\.jsonl: it is not JSON"):
        records.check()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="Give a folder with files that end with"):
        Records(str(tmp_path / "empty"))


def test_columns_have_the_names_that_settings_give_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"question": "q", "prompt": "other", "answer": "a"}])
    renamed = {"prompt": "question", "answer": "prompt", "question": "answer"}
    assert read(path, columns=renamed).rows[0].values == {"prompt": "q", "answer": "other", "question": "a"}
    assert read(path, columns={"prompt": "question"}).rows[0].values == {"prompt": "q", "answer": "a"}
    with pytest.raises(
        UserError, match=r"Correct data\.columns\.text=body: .* no such column, but 'question', 'prompt'"
    ):
        read(path, columns={"text": "body"})


def test_columns_that_nearly_have_a_known_name_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"prompt": "a", "id": 1}, {"promt": "b", "id": 2}, {"question": "c", "prompts": "d"}]
    records = read(write(tmp_path / "a.jsonl", rows))
    with caplog.at_level(logging.WARNING):
        records.expect([("prompt", "question"), "answer"])
    assert [row.values for row in records.rows] == [rows[0], rows[2]]
    sentence = r"line 2: the column 'promt' is not known; write 'prompt', or set data\.columns\.prompt=promt"
    with pytest.raises(UserError, match=sentence):
        records.check()
    left_out = f"2 of 3 records of {records.path}; left out: 1 because of columns"
    assert records.check(skip_invalid=True) == left_out
    unused = f"{records.path}: columns that are not used: 'id', 'prompts'"
    assert [line.getMessage() for line in caplog.records] == [unused, left_out]
    again = Records(records.path)
    again.expect(["prompt", "question", "answer"])
    assert len(list(again)) == 1, "the same when rows are read one by one"
    assert records.check(skip_invalid=True) == left_out
    assert [line.getMessage() for line in caplog.records].count(left_out) == 1, "it is said once"


@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
def test_a_table_has_every_column_in_every_row(name: str, tmp_path: Path) -> None:
    """A misspelt column beside the right one, which is empty there, is refused; where it is empty itself it is not."""
    rows = [{"prompt": "a", "promt": None}, {"prompt": None, "promt": "b"}, {"prompt": "c", "promt": "d"}]
    records = read(write(tmp_path / name, rows))
    records.expect(["prompt"])
    assert [row.values["prompt"] for row in records.rows] == ["a", "c"]
    with pytest.raises(UserError, match="the column 'promt' is not known; write 'prompt'"):
        records.check()


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("mutable_position", "mutable_positions", True),
        ("Mutable-Positions", "mutable_positions", True),
        ("mutabel_postions", "mutable_positions", True),
        ("chosne", "chosen", True),
        ("design_chain", "design_chains", True),
        ("prompt_id", "prompt", False),
        ("question_id", "question", False),
        ("score_chosen", "chosen", False),
        ("negative", "positive", False),
        ("pis", "pos", False),
        ("title", "text", False),
    ],
)
def test_typing_errors(name: str, known: str, expected: bool) -> None:
    assert is_near(name, known) == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("", "abc", 3),
        ("abc", "abc", 0),
        ("acb", "abc", 1),
        ("ab", "abc", 1),
        ("kitten", "sitting", 3),
        ("ca", "abc", 3),
    ],
)
def test_edits(first: str, second: str, expected: int) -> None:
    assert edits(first, second) == edits(second, first) == expected


def test_lists_in_a_table_are_json(tmp_path: Path) -> None:
    rows = [{"ids": '["A", "B"]', "text": "[not a list"}, {"ids": "A,B", "text": '["A"]'}]
    records = read(write(tmp_path / "a.csv", rows))
    records.expect(["ids", "text"], lists=["ids", "text"])
    assert [row.values["ids"] for row in records.rows] == [["A", "B"], "A,B"]
    assert [row.values["text"] for row in records.rows] == ["[not a list", ["A"]]
    lines = read(write(tmp_path / "a.jsonl", rows))
    lines.expect(["ids", "text"], lists=["ids", "text"])
    assert [row.values for row in lines.rows] == rows, "JSON says itself what is a list"


def test_all_problems_are_said_at_once_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": "x"}\n' + '{"a": 1}\n' * 25 + "no\n")
    records = read(tmp_path / "a.jsonl")
    assert sum(records.texts(row, ["a"]) is not None for row in records.rows) == 1
    with pytest.raises(UserError) as refusal:
        records.check()
    lines = str(refusal.value).splitlines()
    assert lines[0].startswith("Fix 26 of 27 records of ") and len(lines) == 22
    assert lines[1] == "  line 2: 'a' is no text but 1"
    assert lines[-1] == "  and 6 more problems: 1 about format, 5 about texts"
    assert records.check(skip_invalid=True).endswith("left out: 1 because of format, 25 because of texts")


@pytest.mark.parametrize("name", ["a.parquet", "."])
def test_a_missing_library_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.parquet", ROWS)
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    (tmp_path / "data.arrow").touch()
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r'pip install "samestep\[datasets\]"'):
        read(tmp_path / name)


def test_several_paths_with_weights(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.jsonl", ROWS), write(tmp_path / "b.csv", ROWS[:2])
    records = Records([f"{first}:1", f"{second}:3"])
    assert [row.source for row in records.rows] == [0] * 5 + [1] * 2
    assert [row.number for row in records.rows] == list(range(1, 8))
    assert [origin.path.name for origin in records.origins()] == ["a.jsonl", "b.csv"]
    assert records.draw_weights([0, 1, 0, 1, 0, 0]) == [1 / 4, 3 / 2, 1 / 4, 3 / 2, 1 / 4, 1 / 4]
    assert Records([str(first), str(second)]).draw_weights([0, 1]) is None
    with pytest.raises(UserError, match="of one, none is left for training"):
        records.draw_weights([0, 0])
    second.write_text("a,b\n1\n")
    records = Records([str(first), str(second)])
    assert records.rows
    with pytest.raises(UserError, match=r"row 1 \(line 2\) of .*b\.csv: it has 1 values"):
        records.check()
