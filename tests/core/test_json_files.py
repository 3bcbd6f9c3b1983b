"""Small files and JSON lines that a kill cannot spoil."""

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.core.errors import UserError
from samestep.core.json_files import (
    DamagedFile,
    JsonLines,
    parse_json,
    read_json,
    read_json_if_readable,
    read_object,
    read_object_if_readable,
    write_json,
)


def test_json_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "x.json"
    assert read_json(path) is None
    write_json(path, {"a": [1, None, "é"]})
    write_json(path, {"b": 2.5})
    assert read_json(path) == {"b": 2.5}
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]


def test_rows_are_there_as_soon_as_they_are_appended(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "rows.jsonl")
    assert list(lines) == []
    lines.append({"step": 1})
    lines.append({"step": 2, "text": "two\nlines"})
    assert list(JsonLines(lines.path)) == [{"step": 1}, {"step": 2, "text": "two\nlines"}]


def test_a_half_written_last_line_is_ignored_and_then_replaced(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    assert list(JsonLines(path)) == [{"step": 1}]
    lines = JsonLines(path)
    lines.append({"step": 2})
    assert list(lines) == [{"step": 1}, {"step": 2}]
    path.write_text('{"half')
    JsonLines(path).append({"step": 1})
    assert list(JsonLines(path)) == [{"step": 1}]


def test_rows_beyond_a_checkpoint_are_cut_and_written_again(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "rows.jsonl")
    for step in range(5):
        lines.append({"step": step})
    lines.keep(lambda row: row["step"] < 3)
    lines.append({"step": 3})
    assert [row["step"] for row in lines] == [0, 1, 2, 3]


DAMAGE = {
    "empty": b"",
    "half of it": b'{"step": 1, "lo',
    "not UTF-8": b'{"a": "\xff"}',
    "too deep for json": b"[" * 100_000,
    "too deep for us": b'{"a":' + b"[" * 200 + b"]" * 200 + b"}",
    "a number too long": b'{"a": ' + b"1" * 5000 + b"}",
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_one_sentence_or_none_at_all(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.json is damaged: it is .*; restore it from a copy") as refusal:
        read_json(path)
    assert "\n" not in str(refusal.value)
    with pytest.raises(ValueError, match="is damaged"):
        read_object(path)
    assert read_json_if_readable(path) is None
    assert read_object_if_readable(path) == {}


def test_a_folder_or_a_pipe_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("folder", "is a folder"), ("pipe", "is not a file")):
        with pytest.raises(DamagedFile, match=why):
            read_json(tmp_path / name)


@pytest.mark.parametrize("name", ["a" * 300, "nul\0", "\ud800", "file/below"])
def test_a_name_that_no_file_can_have_is_that_of_no_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    assert read_json(tmp_path / name) is None


@pytest.mark.parametrize("text", ["[]", "null", "3", '"abc"', "true"])
def test_an_object_is_not_anything_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    assert read_object(path) == {}
    path.write_text(text)
    with pytest.raises(DamagedFile, match="must hold a JSON object, and holds"):
        read_object(path)


@pytest.mark.parametrize("line", ["{", "[]", "[" * 100_000, "\ud800"], ids=["half", "list", "deep", "surrogate"])
def test_a_damaged_line_is_named_and_no_row_is_dropped(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    content = f'{{"step": 1}}\n{line}\n{{"step": 2}}\n'.encode(errors="surrogatepass")
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match="line 2 is not one that was written"):
        JsonLines(path).keep(lambda row: True)
    assert path.read_bytes() == content


def test_rows_of_another_shape_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": "abc"}\n')
    with pytest.raises(DamagedFile, match="its content is not what was written"):
        JsonLines(path).keep(lambda row: row["step"] < 3)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
@settings(deadline=None)
def test_any_json_comes_back(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


@given(st.binary())
@settings(deadline=None)
def test_any_bytes_are_json_or_a_value_error(content: bytes) -> None:
    with suppress(ValueError):
        parse_json(content)
