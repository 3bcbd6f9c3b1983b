"""Hugging Face datasets are read as they are; what cannot be read by index is refused with what to do instead."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from samestep.core.errors import UserError
from samestep.data.chosen_rows import ReadOptions
from samestep.data.collate import pad_rows
from samestep.data.datasets import as_rows, open_rows
from samestep.data.feed import Feed
from samestep.data.fingerprint import compare_fingerprint, take_fingerprint
from samestep.data.mixed import Mixed
from samestep.data.order import Sequential
from samestep.world.world import World

hf = pytest.importorskip("datasets")
READING = ReadOptions(seed=3)


hf.disable_progress_bars()


def table(count: int = 12) -> Any:
    columns = {"tokens": [[n, n + 1] for n in range(count)], "label": [n % 3 for n in range(count)]}
    return hf.Dataset.from_dict({**columns, "weight": [n / 2 for n in range(count)]})


def batch_of(data: Any, collate: Any = None, pad: Any = None, workers: int = 0) -> dict[str, torch.Tensor]:
    opened = open_rows(data, collate, pad)
    rows, collate = opened.rows, opened.collate
    order = Sequential(len(rows), 4)
    return Feed(rows, order, World.single(), micro_rows=4, length=3, collate=collate, workers=workers)[1].batches[0]


@pytest.mark.parametrize("style", [None, "torch", "numpy"])
@pytest.mark.parametrize("workers", [0, 1])
def test_columns_of_numbers_in_any_format(style: str | None, workers: int) -> None:
    data = table().with_format(style)
    batch = batch_of(data, workers=workers)
    assert batch["tokens"].tolist() == [[n, n + 1] for n in range(4, 8)]
    assert batch["label"].tolist() == [1, 2, 0, 1] and batch["label"].dtype == torch.int64
    assert batch["weight"].tolist() == [2, 2.5, 3, 3.5] and batch["weight"].dtype == torch.get_default_dtype()
    assert batch["ids"][:, 1].tolist() == [4, 5, 6, 7]


def test_rows_are_read_several_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    read = hf.Dataset.__getitems__
    monkeypatch.setattr(hf.Dataset, "__getitems__", lambda data, keys: (asked.append(keys), read(data, keys))[1])
    batch_of(table())
    assert [4, 5, 6, 7] in asked and all(len(keys) == 4 for keys in asked)


def test_text_needs_a_collate() -> None:
    data = table().add_column("text", ["abc"] * 12).add_column("words", [["a"]] * 12)
    sentence = r"no numbers: 'text' \(string\), 'words' \(.*\); tokenize them .*remove_columns.* a collate"
    for rows in (data, data.with_format("torch"), Mixed([table(), data], [1, 1])):
        with pytest.raises(UserError, match=sentence):
            open_rows(rows, None, None)
    with pytest.raises(UserError, match=sentence):
        open_rows(data, None, {"tokens": 0})
    chosen = data.with_format("torch", columns=["tokens"])
    assert set(batch_of(chosen)) == {"tokens", "ids", "live"}
    assert "label" in batch_of(data.remove_columns(["text", "words"]))
    made = batch_of(data, lambda samples: {"length": torch.tensor([len(sample["text"]) for sample in samples])})
    assert made["length"].tolist() == [3] * 4
    by_function = data.with_transform(lambda rows: {"n": [len(text) for text in rows["text"]]})
    assert batch_of(by_function)["n"].tolist() == [3] * 4


def test_ragged_columns_are_padded() -> None:
    ragged = hf.Dataset.from_dict({"tokens": [[1] * n for n in range(1, 13)]})
    with pytest.raises(UserError, match="different shapes"):
        batch_of(ragged)
    assert batch_of(ragged, pad={"tokens": 0})["tokens"].sum(1).tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (hf.DatasetDict({"test": table()}), r"choose one split of the dataset, such as data\['test'\]"),
        (table().with_format("arrow"), r"as arrow tables; use dataset.with_format\('torch'\)"),
        ("rows/*.tar", r"is a path; give the feed the rows in it, such as samestep.stream\('rows/\*.tar'\)"),
        (DataLoader(TensorDataset(torch.ones(3))), r"the dataset itself \(loader.dataset\), not a DataLoader"),
        ((row for row in ()), "a generator can be read only once"),
        (5, "len.. and rows by index, and a int has not; a list of dicts has"),
        ({"x": torch.ones(3)}, "rows by index, and a dict has not"),
    ],
)
def test_what_has_no_rows_by_index_is_refused(data: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        as_rows(data)


def test_tuples_are_mapped_by_a_collate() -> None:
    data = TensorDataset(torch.arange(12), torch.arange(12) * 2)
    with pytest.raises(UserError, match="a sample must be a dict of tensors, but the data gave a tuple"):
        batch_of(data)
    batch = batch_of(data, lambda samples: {"x": torch.stack([x for x, _ in samples])})
    assert batch["x"].tolist() == [4, 5, 6, 7]


def test_files_and_rows_make_the_fingerprint(tmp_path: Path) -> None:
    table().save_to_disk(str(tmp_path / "data"))
    data = hf.load_from_disk(str(tmp_path / "data"))
    known = take_fingerprint(as_rows(data), READING)
    assert [file["name"] for file in known["files"]] == ["data-00000-of-00001.arrow", "an array in memory"]
    assert not compare_fingerprint(known, as_rows(hf.load_from_disk(str(tmp_path / "data"))), READING).difference
    assert compare_fingerprint(known, as_rows(data.shuffle(seed=1)), READING).difference, "other rows of the same file"
    changed = table().map(lambda row: {"label": row["label"] + (row["weight"] == 4.5)})
    changed.save_to_disk(str(tmp_path / "other"))
    found = compare_fingerprint(known, as_rows(hf.load_from_disk(str(tmp_path / "other"))), READING)
    assert found.difference == "the content of data-00000-of-00001.arrow has changed"


def test_what_was_computed_is_compared_by_its_rows(tmp_path: Path) -> None:
    table().save_to_disk(str(tmp_path / "data"))
    data = hf.load_from_disk(str(tmp_path / "data"))
    known = [take_fingerprint(as_rows(data.map(lambda row, by=by: {"b": by})), READING) for by in (1, 1, 2)]
    assert "digest" in known[0] and known[0] == known[1] != known[2]
    assert "digest" in take_fingerprint(as_rows(table()), READING), "in memory there is no file"


class Batches:
    """A source that gives whole batches."""

    def __init__(self, start: int, size: int) -> None:
        self.start, self.size = start, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"x": self.start + index}

    def rows(self, indices: np.ndarray) -> dict[str, torch.Tensor]:
        return {"x": torch.as_tensor(indices) + self.start}

    def origins(self) -> list[np.ndarray]:
        return [np.arange(self.size)]


def test_sources_are_one_after_the_other_however_they_are_read() -> None:
    batches, samples = Batches(100, 5), [{"x": n} for n in range(7)]
    for sources in ([Batches(0, 7), batches], [samples, batches], [hf.Dataset.from_list(samples), batches]):
        rows = Mixed(sources, [1, 2])
        assert len(rows) == 12 and [int(rows[n]["x"]) for n in (0, 6, 7, 11)] == [0, 6, 100, 104]
        order = rows.own_order(50, seed=5)
        batch = Feed(rows, order, World.single(), micro_rows=50, length=1)[0].batches[0]
        index = batch["ids"][:, 1]
        assert torch.equal(batch["x"], torch.where(index < 7, index, index + 93))
        assert 0.5 < (index >= 7).double().mean() < 0.85
    assert len(Mixed([Batches(0, 7), batches], [1, 1]).origins()) == 2
    assert not Mixed([samples, batches], [1, 1]).origins(), "one source has no files: rows are compared"
    with pytest.raises(UserError, match="one weight per source, not 1 for 2"):
        Mixed([samples, batches], [1])


def test_sources_with_other_names_are_refused() -> None:
    class Other(Batches):
        def rows(self, indices: np.ndarray) -> dict[str, torch.Tensor]:
            return {"y": torch.as_tensor(indices)}

    rows = Mixed([Batches(0, 7), Other(0, 5)], [1, 1])
    with pytest.raises(UserError, match=r"must have the same names, not \('x'\), \('y'\)"):
        rows.rows(np.array([1, 8]))
    ragged = Mixed([[{"t": [1, 2]}], [{"t": [1, 2, 3]}]], [1, 1])
    assert pad_rows(ragged.__getitems__([1, 0]), {"t": 0})["t"].tolist() == [[1, 2, 3], [1, 2, 0]]
