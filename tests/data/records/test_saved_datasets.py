"""Folders of `save_to_disk` are data: whatever they hold, nothing is fetched and nothing outside of them is read."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from page_server import PageServer, serving
from samestep.core.errors import UserError
from samestep.data.records.reading import Records

datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")

TEXTS = ["one", "two", "three"]


@pytest.fixture
def recorder() -> Iterator[PageServer]:
    with serving() as server:
        yield server


def read(folder: Path) -> Records:
    records = Records(str(folder))
    assert records.rows
    records.check()
    return records


def saved(folder: Path, texts: Sequence[str] = TEXTS) -> Path:
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(folder)
    return folder


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def replace_table(folder: Path, table: Any) -> None:
    """Put another Arrow table into a saved dataset."""
    (file,) = folder.glob("*.arrow")
    with pyarrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)


@pytest.mark.timeout(60)
def test_media_columns_are_not_fetched(tmp_path: Path, recorder: PageServer) -> None:
    image = datasets.Image()
    features = datasets.Features(
        {"text": datasets.Value("string"), "image": image, "more": datasets.Sequence(image), "in": {"a": image}}
    )
    urls = [f"{recorder.url}/{number}.png" for number in range(3)]
    columns = {"text": TEXTS, "image": urls, "more": [[url] for url in urls], "in": [{"a": url} for url in urls]}
    folder = saved(tmp_path / "saved")
    dataset = datasets.Dataset.from_dict(columns, features)
    replace_table(folder, dataset.data.table)  # save_to_disk would fetch the images itself
    change(folder / "dataset_info.json", features=dataset.features.to_dict())
    table = read(folder)
    assert not recorder.requests
    assert [row.values["text"] for row in table.rows] == TEXTS
    assert table.columns == ["text", "image", "more", "in"]
    table.texts(table.rows[1], ["image"])
    with pytest.raises(
        UserError, match=r"records of .*saved, .*\n  row 2: 'image' is no text but \"struct<bytes: binary"
    ):
        table.check()


def test_types_and_formats_that_nobody_knows_do_not_matter(tmp_path: Path, recorder: PageServer) -> None:
    folder = saved(tmp_path / "saved")
    unknown = {"text": {"_type": "Unheard", "decode": True}, "gone": {"_type": "Image", "path": recorder.url}}
    change(folder / "dataset_info.json", features=unknown, builder_name=f"{recorder.url}/builder")
    change(folder / "state.json", _format_type="custom", _format_kwargs={"transform": "os.system"}, _format_columns=3)
    assert [row.values for row in read(folder).rows] == [{"text": text} for text in TEXTS]
    assert not recorder.requests


@pytest.mark.parametrize("outside", ["../other/{file}", "{other}/{file}", "file://{other}/{file}", "..", "", 3, None])
def test_data_files_lie_in_the_folder(outside: Any, tmp_path: Path) -> None:
    folder, other = saved(tmp_path / "saved"), saved(tmp_path / "other")
    (file,) = (file.name for file in other.glob("*.arrow"))
    name = outside.format(file=file, other=other) if isinstance(outside, str) else outside
    change(folder / "state.json", _data_files=[{"filename": name}])
    with pytest.raises(UserError, match=r"Save .*saved again; its state\.json does not name files in it"):
        read(folder)


@pytest.mark.parametrize("scheme", ["{url}/data.arrow", "hf://datasets/some/data.arrow"])
def test_data_files_are_not_remote(scheme: str, tmp_path: Path, recorder: PageServer) -> None:
    folder = saved(tmp_path / "saved")
    change(folder / "state.json", _data_files=[{"filename": scheme.format(url=recorder.url)}])
    with pytest.raises(UserError, match="does not name files in it"):
        read(folder)
    assert not recorder.requests


@pytest.mark.parametrize("outside", ["../other", "{other}", "..", "", 3, None])
def test_splits_lie_in_the_folder(outside: Any, tmp_path: Path) -> None:
    other = saved(tmp_path / "other")
    (tmp_path / "saved").mkdir()
    name = outside.format(other=other) if isinstance(outside, str) else outside
    (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": [name]}))
    with pytest.raises(UserError, match=r"does not list its splits"):
        read(tmp_path / "saved")


@pytest.mark.timeout(60)
def test_a_pipe_is_no_data_file(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved")
    (file,) = folder.glob("*.arrow")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UserError, match=r"Save the dataset in .*saved again; .*\.arrow is no file"):
        read(folder)


def test_a_row_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved")
    (file,) = folder.glob("*.arrow")
    file.write_bytes(file.read_bytes().replace(b"onetwothree", b"onet\xffothree"))
    with pytest.raises(UserError, match=r"records of .*saved, .*\n  row 2: 'text' is damaged \(.*UTF8.*\)$"):
        read(folder)


def test_times_that_python_cannot_hold_do_not_matter(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved")
    times = pyarrow.array([1, 2, 2**62], pyarrow.timestamp("us"))
    replace_table(folder, pyarrow.table({"text": TEXTS, "time": times}))
    assert [row.values["text"] for row in read(folder).rows] == TEXTS


def nothing(length: int) -> Any:
    """Values that take no space."""
    return pyarrow.Array.from_buffers(pyarrow.null(), length, [None])


BOMBS: dict[str, Callable[[], Any]] = {
    "rows": lambda: nothing(1 << 30),
    "lists": lambda: pyarrow.LargeListArray.from_arrays(pyarrow.array([0, 1 << 30]), nothing(1 << 30)),
    "fixed": lambda: pyarrow.FixedSizeListArray.from_arrays(nothing(1 << 30), 1 << 30),
}
"""Columns of a few bytes that claim more rows or values than memory has."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_does_not_fill_the_memory(name: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved")
    replace_table(folder, pyarrow.table({"text": BOMBS[name]()}))
    with pytest.raises(UserError, match=r"Save the dataset in .*saved again; .*\.arrow claims more values than it has"):
        read(folder)


def test_a_value_that_is_stored_once_for_many_rows_is_not_copied(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved")
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 3), pyarrow.array(["long"]))
    replace_table(folder, pyarrow.table({"text": text}))
    table = read(folder)
    assert table.texts(table.rows[0], ["text"]) is None


def test_a_folder_that_was_cut_off_is_a_sentence(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", [f"text {number}" for number in range(3000)])
    (file,) = folder.glob("*.arrow")
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(UserError, match=r"Save the dataset in .*saved again; .*\.arrow cannot be read after row \d+: "):
        read(folder)


@pytest.mark.parametrize("content", ["{}", "[]", "", '{"_data_files": 3}', '{"_data_files": [3]}', "[" * 100_000])
def test_a_state_that_is_none_is_a_sentence(content: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved")
    (folder / "state.json").write_text(content)
    with pytest.raises(UserError, match=r"Save the dataset in .*saved again; "):
        read(folder)
