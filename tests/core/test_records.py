"""Small files and JSON lines that a kill cannot spoil."""

from pathlib import Path

from samestep.core.records import JsonLines, read_json, write_json


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
