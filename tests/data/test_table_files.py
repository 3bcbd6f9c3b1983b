"""Tables in files of every kind have the same rows, and say what is wrong in the same way."""

import builtins
import csv
import gzip
import json
import resource
from pathlib import Path
from typing import Any

import pytest

from samestep.core.errors import UserError
from samestep.data.table_files import EVERY_KIND, read_table

ROWS: list[dict[str, Any]] = [{"a": f'text {n}\nof "two" lines, été', "b": f"{n}"} for n in range(5)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows in the kind of file that the name says."""
    name = path.name.removesuffix(".gz")
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
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    return path


KINDS = ("a.csv", "a.tsv", "a.json", "a.jsonl", "a.ndjson", "a.parquet", "a.csv.gz", "a.tsv.gz", "a.jsonl.gz")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("limit", [None, 2, 9])
def test_every_kind_has_the_same_rows(name: str, limit: int | None, tmp_path: Path) -> None:
    before = csv.field_size_limit()
    table = read_table(str(write(tmp_path / name, ROWS)), EVERY_KIND, limit)
    assert [row.values for row in table.rows] == ROWS[:limit]
    assert table.columns == ["a", "b"] and not table.problems
    assert csv.field_size_limit() == before


def test_parquet_files_with_categories_bytes_and_times(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    named = pyarrow.array(["x", "y", "x"]).dictionary_encode()
    times = pyarrow.array([1, 2, 3], pyarrow.timestamp("ns"))  # which Python has no type for
    write_table(pyarrow.table({"a": named, "b": [b"1", b"2", b"3"], "c": times}), tmp_path / "a.parquet")
    table = read_table(str(tmp_path / "a.parquet"), EVERY_KIND)
    assert [row.values["a"] for row in table.rows] == ["x", "y", "x"]
    assert table.texts(table.rows[0], ["b", "c"]) is None
    with pytest.raises(UserError, match=r"row 1: 'b' is no text but \"binary\", 'c' is no text but \"timestamp"):
        table.check()


def test_a_limit_reads_no_further(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\nnot JSON\n')
    table = read_table(str(path), limit=2)
    table.check()
    assert len(table.rows) == 2


def test_a_dataset_in_a_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    one = datasets.Dataset.from_list(ROWS)
    one.with_format("torch").save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": one}).save_to_disk(tmp_path / "single")
    datasets.DatasetDict({"train": one, "test": one}).save_to_disk(tmp_path / "several")
    for folder in ("one", "single", "several/train"):
        assert [row.values for row in read_table(str(tmp_path / folder), EVERY_KIND, 3).rows] == ROWS[:3]
    with pytest.raises(UserError, match=r"Name one split of .*several/train, .*several/test\."):
        read_table(str(tmp_path / "several"), EVERY_KIND)
    (tmp_path / "one" / "state.json").write_text("{}")
    with pytest.raises(UserError, match=r"Save the dataset in .* again"):
        read_table(str(tmp_path / "one"), EVERY_KIND)
    (tmp_path / "single" / "dataset_dict.json").write_text("[]")
    with pytest.raises(UserError, match="does not list its splits"):
        read_table(str(tmp_path / "single"), EVERY_KIND)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.json", b'[{"a": 1}, 2]', "record 2: not a JSON object"),
        ("a.json", b'{"a": 1}\n{"a": \n', r"record 2 \(line 2\): it is not JSON"),
        ("a.json", b"[]", "is empty"),
        ("a.json", b"[1,", "which is no JSON list"),
        ("a.parquet", b"PAR1 nothing", "Give another parquet file; .*a.parquet cannot be read after row 0"),
        ("a.jsonl.gz", b"not packed", "cannot be unpacked after line 0"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 100, mtime=0)[:-9], "cannot be unpacked after line"),
        ("a.json.gz", gzip.compress(b"[]", mtime=0), "Give a file that ends with"),
        ("a.zip", b"PK", "Unpack .*a.zip"),
        ("a.txt", b"text", r"Give a file that ends with \.csv, \.tsv, .*\.jsonl\.gz.*; .*a.txt does not"),
    ],
)
def test_files_that_cannot_be_read(name: str, content: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        read_table(str(tmp_path / name), EVERY_KIND).check()


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
        read_table(str(tmp_path / name), EVERY_KIND)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began < 2 << 20, "KiB"


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises(UserError, match=r"Name one file inside the folder .*, such as a\.csv"):
        read_table(str(tmp_path), EVERY_KIND)


@pytest.mark.parametrize("name", ["a.parquet", "."])
def test_a_missing_library_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.parquet", ROWS)
    (tmp_path / "state.json").write_text("{}")
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r'pip install "samestep\[datasets\]"'):
        read_table(str(tmp_path / name), EVERY_KIND)
