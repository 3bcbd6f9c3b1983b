"""Fingerprints of data: what they notice, what they do not, and what they read."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samestep.core.errors import UserError
from samestep.data.chosen_rows import ROWS, ReadOptions, chosen_rows
from samestep.data.data_file import DataFile
from samestep.data.fingerprint import Origin, compare_fingerprint, take_fingerprint
from samestep.data.row_digest import digest_of
from samestep.data.text import fingerprint, open_text, origins, split
from toys import Points

OPTIONS = ReadOptions(seed=3)


class Files:
    """Rows that come out of files."""

    def __init__(self, *origins: Origin, length: int = 5) -> None:
        self._origins, self._length = origins, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index

    def origins(self) -> tuple[Origin, ...]:
        return self._origins


def points(count: int) -> list[dict[str, Any]]:
    return [
        {"x": torch.tensor([float(i), i / 7]), "label": i, "name": f"row {i}", "more": [None, (i,)]}
        for i in range(count)
    ]


def edit(path: Path, content: bytes, mtime_ns: int | None = None) -> None:
    path.write_bytes(content)
    if mtime_ns is not None:
        os.utime(path, ns=(mtime_ns, mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.update(x=row["x"] + torch.tensor([0.0, 0.01])),
        lambda row: row.update(x=row["x"].flip(0)),
        lambda row: row.update(x=row["x"].double()),
        lambda row: row.update(x=torch.tensor([float("nan"), 0.0])),
        lambda row: row.update(label=-1),
        lambda row: row.update(label=4.0),
        lambda row: row.update(name="row 5 "),
        lambda row: row.update(more=[0, (4,)]),
        lambda row: row.pop("more"),
        lambda row: row.update(other=1),
    ],
)
def test_any_change_of_a_row_is_seen(change: Callable[[dict[str, Any]], None]) -> None:
    before, rows = take_fingerprint(points(9), OPTIONS), points(9)
    assert not compare_fingerprint(before, rows, OPTIONS).difference
    change(rows[4])
    assert compare_fingerprint(before, rows, OPTIONS).difference == "rows differ among the 9 that were compared"


def test_rows_that_changed_places_are_seen() -> None:
    rows = [{"x": torch.tensor(float(i))} for i in range(9)]
    before = take_fingerprint(rows, OPTIONS)
    assert compare_fingerprint(before, [*rows[1:], rows[0]], OPTIONS).difference


def test_other_last_bits_of_floats_are_the_same_data() -> None:
    rows = [{"x": torch.randn(50, generator=torch.Generator().manual_seed(i))} for i in range(9)]
    before = take_fingerprint(rows, OPTIONS)
    near = [{"x": row["x"] * (1 + 2e-7)} for row in rows]
    assert not torch.equal(near[0]["x"], rows[0]["x"])
    assert not compare_fingerprint(before, near, OPTIONS).difference
    assert compare_fingerprint(before, [{"x": row["x"] * (1 + 2e-4)} for row in rows], OPTIONS).difference


def test_of_many_rows_some_are_compared_always_the_same_ones() -> None:
    indices = chosen_rows(1000, seed=3)
    assert len(set(indices.tolist())) == ROWS and indices.tolist() == sorted(indices.tolist())
    assert chosen_rows(1000, seed=3).tolist() == indices.tolist() != chosen_rows(1000, seed=4).tolist()
    assert chosen_rows(ROWS, seed=3).tolist() == list(range(ROWS))
    before, rows = take_fingerprint(points(1000), OPTIONS), points(1000)
    other = next(i for i in range(1000) if i not in indices)
    rows[other]["label"] = -1
    assert not compare_fingerprint(before, rows, OPTIONS).difference, "this one goes unnoticed"
    rows[int(indices[7])]["label"] = -1
    assert compare_fingerprint(before, rows, OPTIONS).difference


def test_a_whole_batch_is_asked_for_where_that_is_possible() -> None:
    rows = Points(100)
    before = take_fingerprint(rows, OPTIONS)
    assert not compare_fingerprint(before, Points(100), OPTIONS).difference
    rows.tokens[int(chosen_rows(100, seed=3)[50])] += 1
    assert compare_fingerprint(before, rows, OPTIONS).difference


def test_unknown_things_count_by_their_type_alone() -> None:
    assert digest_of([object()]) == digest_of([object()]) != digest_of([Path("a")])
    assert digest_of([{"a": 1, "b": 2}]) == digest_of([{"b": 2, "a": 1}])
    assert digest_of([np.array(["a", "b"], dtype=object)]) != digest_of([np.array(["a", "c"], dtype=object)])
    assert digest_of([torch.zeros(3, dtype=torch.bfloat16)]) != digest_of([torch.zeros(3)])
    assert digest_of([torch.ones(2, 3)]) != digest_of([torch.ones(3, 2)])
    assert digest_of([torch.eye(2).to_sparse()]) == digest_of([torch.zeros(2, 2).to_sparse()])


def test_long_floats_are_taken_a_block_at_a_time() -> None:
    values = torch.randn(200_000, generator=torch.Generator().manual_seed(1))
    whole = digest_of([values])
    assert whole.floats[""][0] == pytest.approx(float(values.double().norm()))
    moved = values.clone()
    moved[[5, 150_000]] = moved[[150_000, 5]]
    assert not whole.same_as(digest_of([moved]))


def test_small_numbers_of_one_field_show_beside_large_ones_of_another() -> None:
    def rows(sign: float) -> list[dict[str, torch.Tensor]]:
        return [{"image": torch.full((12_288,), 128.0 + i), "label": torch.tensor(sign * i)} for i in range(70)]

    before = take_fingerprint(rows(1.0), OPTIONS)
    assert not compare_fingerprint(before, rows(1.0), OPTIONS).difference
    assert compare_fingerprint(before, rows(-1.0), OPTIONS).difference
    pairs = [(row["image"], float(row["label"])) for row in rows(1.0)]
    assert not digest_of(pairs).same_as(digest_of([(image, -label) for image, label in pairs]))


def test_a_file_is_read_again_only_if_size_or_time_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    edit(path, b"one", mtime_ns=10**18)
    before = take_fingerprint(Files(path), OPTIONS)
    sha256 = hashlib.sha256(b"one").hexdigest()
    assert before["files"] == [{"name": "a.bin", "path": str(path), "size": 3, "mtime_ns": 10**18, "sha256": sha256}]
    edit(path, b"two", mtime_ns=10**18)
    assert compare_fingerprint(before, Files(path), OPTIONS).record == before, "this goes unnoticed"
    edit(path, b"two", mtime_ns=2 * 10**18)
    assert compare_fingerprint(before, Files(path), OPTIONS).difference == "the content of a.bin has changed"
    edit(path, b"one", mtime_ns=2 * 10**18)
    touched = compare_fingerprint(before, Files(path), OPTIONS)
    assert not touched.difference
    assert touched.record["files"][0]["mtime_ns"] == 2 * 10**18
    edit(path, b"one!", mtime_ns=2 * 10**18)
    assert compare_fingerprint(touched.record, Files(path), OPTIONS).difference


def test_a_known_hash_is_used_without_reading_but_not_for_a_touched_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    edit(path, b"one", mtime_ns=10**18)
    claimed = hashlib.sha256(b"claimed").hexdigest()
    before = take_fingerprint(Files(DataFile(path, sha256=claimed)), OPTIONS)
    assert before["files"][0]["sha256"] == claimed
    assert not compare_fingerprint(before, Files(DataFile(path, sha256=claimed)), OPTIONS).difference
    assert compare_fingerprint(before, Files(DataFile(path, sha256="another")), OPTIONS).difference, (
        "prepared again, with the same time"
    )
    os.utime(path)
    assert compare_fingerprint(before, Files(DataFile(path, sha256=claimed)), OPTIONS).difference


def test_both_parts_of_a_text_share_one_hash_which_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    edit(path, b"some text\n" * 10, mtime_ns=10**18)
    text = open_text(str(path))
    train, validation, _ = split(text, 0.2)
    record = take_fingerprint(Files(*origins(train)), OPTIONS)
    path.write_bytes(b"other text")
    assert take_fingerprint(Files(*origins(validation)), OPTIONS)["files"][0]["sha256"] == record["files"][0]["sha256"]
    assert fingerprint(text) == record["files"][0]["sha256"] == hashlib.sha256(b"some text\n" * 10).hexdigest()


def test_only_the_tokens_in_use_are_hashed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    edit(path, b"0123456789", mtime_ns=10**18)

    def record() -> list[DataFile | np.ndarray]:
        return origins(open_text(str(path)).span(0, 4).with_own_hash())

    before = take_fingerprint(Files(*record()), OPTIONS)
    edit(path, b"0123xxxxxxxxx", mtime_ns=2 * 10**18)
    assert not compare_fingerprint(before, Files(*record()), OPTIONS).difference, "what comes after it is never read"
    edit(path, b"01x3456789", mtime_ns=3 * 10**18)
    assert compare_fingerprint(before, Files(*record()), OPTIONS).difference


def test_arrays_in_memory_are_hashed_completely() -> None:
    values = np.arange(100_000, dtype=np.uint8)
    before = take_fingerprint(Files(values), OPTIONS)
    assert not compare_fingerprint(before, Files(values.copy()), OPTIONS).difference
    values[77_777] += 1
    assert (
        compare_fingerprint(before, Files(values), OPTIONS).difference
        == "the content of an array in memory has changed"
    )


def test_lengths_and_numbers_of_files_are_compared(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    before = take_fingerprint(Files(tmp_path / "a"), OPTIONS)
    assert (
        compare_fingerprint(before, Files(tmp_path / "a", length=6), OPTIONS).difference
        == "it has 6 rows now, and had 5"
    )
    two = Files(tmp_path / "a", tmp_path / "a")
    assert compare_fingerprint(before, two, OPTIONS).difference == "it comes from 2 files now, and came from 1"
    changed = compare_fingerprint(before, points(5), OPTIONS)
    assert changed.is_new and "digest" in changed.record, "what cannot be compared is recorded again"
    with pytest.raises(UserError, match=r"put the file .*/gone back"):
        take_fingerprint(Files(tmp_path / "gone"), OPTIONS)
