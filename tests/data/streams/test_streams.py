"""Every row of a stream comes once an epoch, in one order at any number of ranks and loader processes."""

from pathlib import Path
from typing import Any

import pytest

from data.streams.stream_toys import Numbers, decode_tar, feed_of, make_lines, make_tars, rows_seen
from samestep import stream

SIZES = [7, 1, 12, 3]


def made(kind: str, folder: Path, buffer: int) -> Any:
    if kind == "tar":
        make_tars(folder, SIZES)
        return stream(f"{folder}/*.tar", buffer=buffer, decode=decode_tar)
    if kind == "jsonl":
        return stream(make_lines(folder, SIZES), buffer=buffer)
    if kind == "endless":
        return stream(Numbers(23), buffer=buffer)
    return stream(Numbers(23), buffer=buffer, rows=23)


@pytest.mark.parametrize("kind", ["tar", "jsonl", "in order", "endless"])
@pytest.mark.parametrize("buffer", [1, 4, 10, 1000])
def test_the_rows_of_any_world_are_those_of_one(kind: str, buffer: int, tmp_path: Path) -> None:
    data = made(kind, tmp_path, buffer)
    whole = rows_seen(feed_of(data), range(12))
    epochs: dict[int, list[int]] = {}
    for (_, epoch, index), x in whole.items():
        assert x == index % 23
        epochs.setdefault(epoch, []).append(index)
    for size in (2, 3, 7):
        parts = [rows_seen(feed_of(data, rank=rank, size=size), range(12)) for rank in range(size)]
        assert sum(map(len, parts)) == len(whole) and dict(item for part in parts for item in part.items()) == whole
    if kind == "endless":
        assert set(epochs) == {0} and (buffer > 10 or set(range(50)) <= set(epochs[0]) <= set(range(70)))
    else:
        assert [sorted(indices) for indices in epochs.values()][:2] == [list(range(23))] * 2
        assert kind != "in order" or buffer > 1 or epochs[0] == epochs[1] == list(range(23))
        assert buffer == 1 or epochs[0] != epochs[1]
