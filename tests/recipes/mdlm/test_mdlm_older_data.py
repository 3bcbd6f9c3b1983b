"""The older layout: rows of int64 in .npy files, memory-mapped, and refused with the reason if something is wrong."""

import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samestep.core.errors import UserError
from samestep.recipes.mdlm.older_data import is_older, open_older


def older(folder: Path, **changes: Any) -> Path:
    """A folder of 10 and 3 rows of 8 characters; a file whose change is None is left out."""
    vocab = {chr(97 + i): i for i in range(26)}
    rows = np.arange(104).reshape(13, 8) % 26
    files: dict[str, Any] = {
        "train_data": rows[:10],
        "val_data": rows[10:],
        "vocab": vocab,
        "metadata": {"sequence_length": 8, "vocab_size": 26},
        **changes,
    }
    folder.mkdir(exist_ok=True)
    for name, value in files.items():
        if isinstance(value, np.ndarray):
            np.save(folder / f"{name}.npy", value, allow_pickle=True)
        elif value is not None:
            (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_rows_are_read_unchanged(tmp_path: Path) -> None:
    found = open_older(older(tmp_path))
    assert is_older(tmp_path)
    assert found.train.shape == (10, 8)
    assert found.tokenizer.decode(found.validation[np.array([0])][0].tolist()) == "cdefghij"
    assert (found.tokenizer.vocabulary.mask, found.tokenizer.vocabulary.size) == (26, 28)
    assert found.validation_bytes_per_token() == 1.0


def test_bytes_per_token_count_what_characters_take(tmp_path: Path) -> None:
    rows = np.tile([0, 1, 2, 1, 0, 0, 1, 1], (4, 1))
    found = open_older(older(tmp_path, train_data=rows, val_data=rows, vocab={"a": 0, "☃": 1, "<eos>": 2}))
    assert found.validation_bytes_per_token() == (3 * 1 + 4 * 3) / 8


BAD = {
    "no validation": ({"val_data": None}, "it has no val_data.npy"),
    "no metadata": ({"metadata": None}, "it has no metadata.json"),
    "no vocabulary": ({"vocab": None}, r"neither a vocab\.json nor a tokenizer\.json"),
    "floats": ({"train_data": np.zeros((2, 8))}, r"holds float64 of the shape \[2, 8\]"),
    "flat": ({"train_data": np.zeros(8, int)}, r"holds int64 of the shape \[8\]"),
    "empty": ({"val_data": np.zeros((0, 8), int)}, r"shape \[0, 8\]"),
    "objects": ({"train_data": np.array([[1], [1, 2]], dtype=object)}, r"not a complete \.npy file"),
    "unequal rows": ({"val_data": np.zeros((2, 7), int)}, "a row has 8 in train_data.npy and 7 in val_data.npy"),
    "another length": ({"metadata": {"sequence_length": 9}}, "says sequence_length 9, and rows have 8"),
    "beyond": ({"val_data": np.full((2, 8), 99)}, "tokens go from 99 to 99 near row 0, and the vocabulary has 28"),
    "negative": ({"train_data": np.full((2, 8), -100)}, "tokens go from -100 to -100"),
    "the mask": ({"metadata": {"mask_token_id": 3}}, "without the token 3, .*the mask"),
}


@pytest.mark.parametrize(("changes", "sentence"), BAD.values(), ids=BAD.keys())
def test_wrong_files_are_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as refusal:
        open_older(older(tmp_path, **changes))
    assert "\n" not in str(refusal.value)


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    file = older(tmp_path) / "train_data.npy"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(UserError, match=r"not a complete \.npy file"):
        open_older(tmp_path)


def test_a_bad_token_far_into_the_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samestep.recipes.mdlm.older_data._CHUNK", 16)
    rows = np.zeros((100, 8), int)
    rows[77, 3] = 50
    with pytest.raises(UserError, match="near row 76"):
        open_older(older(tmp_path, train_data=rows))


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    peaks = []
    for rows in (50_000, 200_000):
        large = older(tmp_path / str(rows))
        mapped = np.lib.format.open_memmap(large / "train_data.npy", mode="w+", dtype=np.int64, shape=(rows, 128))
        mapped.flush()
        (large / "metadata.json").write_text('{"sequence_length": 128}')
        np.save(large / "val_data.npy", np.zeros((5, 128), int))
        tracemalloc.start()
        found = open_older(large)
        found.train[np.arange(0, rows, rows // 100)]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(pickle.dumps(found.train)) < 1000
    assert peaks[1] < 1.1 * peaks[0]
