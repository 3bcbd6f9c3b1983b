"""Files that are damaged, or of another kind than their names say: each gets sentences with the file and the place."""

import bz2
import gzip
import io
import json
import lzma
import zipfile
from pathlib import Path

import pytest

from samestep.core.errors import UserError
from samestep.data.records.reading import Records

LINES = b"".join(json.dumps({"text": f"text {n}"}).encode() + b"\n" for n in range(200))
TABLE = b"text,label\na,1\nb,2\n"


def jsonl(second: bytes) -> bytes:
    return b'{"text": "a"}\n' + second + b'\n{"text": "c"}\n'


def zipped() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a.csv", TABLE)
    return content.getvalue()


def parquet() -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    content = io.BytesIO()
    write_table(pyarrow.table({"text": [f"text {n}" for n in range(200)]}), content)
    return content.getvalue()


WHOLE = parquet()
CASES: list[tuple[str, bytes, str]] = [
    ("a.jsonl", b"", "is empty"),
    ("a.jsonl", b"\n \n\n", "has none"),
    ("a.jsonl", jsonl(b'{"text": "b"'), "line 2: it is not JSON"),
    ("a.jsonl", jsonl(b'{"text": "b",}'), "line 2: it is not JSON"),
    ("a.jsonl", jsonl(b"{'text': 'b'}"), "line 2: it is not JSON"),
    ("a.jsonl", jsonl(b'{"text": "b}'), "line 2: it is not JSON"),
    ("a.jsonl", jsonl(b'{"text": "b"} {"text": "d"}'), "line 2: it is not JSON"),
    ("a.jsonl", jsonl(b'{"text": "b\x00"}'), "line 2: it is not JSON"),
    ("a.jsonl", jsonl(b'["b"]'), "line 2: it is no JSON object"),
    ("a.jsonl", jsonl(b'"b"'), "line 2: it is no JSON object"),
    ("a.jsonl", jsonl(b"null"), "line 2: it is no JSON object"),
    ("a.jsonl", jsonl(b"text,label"), "line 2: it is not JSON"),
    ("a.jsonl", jsonl(b'{"text": "b", "text": "c"}'), "line 2: it cannot be read as JSON: the key 'text' comes twice"),
    ("a.jsonl", jsonl(b'{"text": ' + b"[" * 100_000), "line 2: it cannot be read as JSON"),
    ("a.jsonl", jsonl(b'{"text": ' + b"9" * 5000 + b"}"), "line 2: it cannot be read as JSON"),
    ("a.jsonl", jsonl('{"text": "é"}'.encode("latin-1")), "line 2: it is not UTF-8 at byte"),
    ("a.jsonl", LINES.decode().encode("utf-16"), "it is text in UTF-16"),
    ("a.jsonl", jsonl(b'{"text": "\\ud800"}'), "line 2: 'text' holds half of a surrogate pair"),
    ("a.jsonl", jsonl(b'{"text": 3}'), "line 2: 'text' is no text but 3"),
    ("a.jsonl", jsonl(b'{"text": null}'), "line 2: 'text' is missing"),
    ("a.jsonl", jsonl(b'{"txet": "b"}'), "line 2: the column 'txet' is not known; write 'text'"),
    ("a.jsonl", WHOLE, "correct its name: it is a parquet file"),
    ("a.json", b'[{"text": "a"}, {"text": ', "is no JSON list"),
    ("a.json", b"[1, 2]", "record 1: it is no JSON object"),
    ("a.json", b'{"text": ["a", "b"]}', "record 1: 'text' is no text"),
    ("a.json", b'"text"', "record 1: it is no JSON object"),
    ("a.csv", b"text,label\n", "has none"),
    ("a.csv", TABLE + b"c\n", "row 3 (line 4): it has 1 values for 2 columns"),
    ("a.csv", TABLE + b"c,3,4\n", "row 3 (line 4): it has 3 values for 2 columns"),
    ("a.csv", TABLE + b'"c,3\n', "row 3 (line 4): it cannot be read"),
    ("a.csv", TABLE + b'"c"d,3\n', "row 3 (line 4): it cannot be read"),
    ("a.csv", TABLE + b",3\n", "row 3 (line 4): 'text' is missing"),
    ("a.csv", TABLE + b"\xff,3\n", "line 4: it is not UTF-8"),
    ("a.csv", b"text,text\na,b\n", "the header: it has 'text' twice"),
    ("a.csv", b"text;label\na;1\n", "row 1 (line 2): 'text' is missing; it has 'text;label'"),
    ("a.tsv", TABLE, "row 1 (line 2): 'text' is missing; it has 'text,label'"),
    ("a.csv", zipped(), "it is a zip archive"),
    ("a.json", gzip.compress(b"[]"), "it is packed with gzip"),
    ("a.jsonl.gz", gzip.compress(LINES)[:-9], "cannot be unpacked after line"),
    ("a.jsonl.gz", LINES, "cannot be unpacked after line 0"),
    ("a.jsonl.gz", gzip.compress(jsonl(b"{")), "line 2: it is not JSON"),
    ("a.csv.bz2", bz2.compress(TABLE * 99)[:-20], "cannot be unpacked after line"),
    ("a.jsonl.xz", lzma.compress(LINES)[:-20], "cannot be unpacked after line"),
    ("a.jsonl.zst", LINES, "cannot be unpacked after line 0"),
    ("a.parquet", WHOLE[: len(WHOLE) // 2], "cannot be read after row 0"),
    ("a.parquet", LINES, "cannot be read after row 0"),
    ("a.parquet", WHOLE[:60] + b"\xff" * 60 + WHOLE[120:], "cannot be read after row 0"),
    ("a.pdf", b"%PDF-1.7", "does not"),
    ("a.csv.zip", zipped(), "does not"),
]


@pytest.mark.parametrize(("name", "content", "problem"), CASES, ids=range(len(CASES)))
def test_what_is_wrong_is_said_with_its_place(name: str, content: bytes, problem: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        _read(str(file))
    assert problem in str(caught.value) and str(file) in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="has none"):
        _read(str(tmp_path / "a"))
    (tmp_path / "a" / "b.jsonl").write_bytes(jsonl(b"{"))
    (tmp_path / "a" / "c.csv").write_bytes(TABLE)
    with pytest.raises(UserError, match=r"Fix 1 of 5 records of .*\n  line 2 of b\.jsonl: it is not JSON"):
        _read(str(tmp_path / "a"))


def _read(path: str) -> list[dict[str, str] | None]:
    records = Records(path)
    records.expect(["text", "label"])
    found = [records.texts(row, ["text"]) for row in records.rows]
    records.check()
    return found
