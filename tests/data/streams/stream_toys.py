"""Small streams of every kind, and what a run of feeds reads of one."""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

from samestep.data.datasets import open_rows
from samestep.data.feed import Feed
from samestep.data.order import Order
from samestep.data.order_choice import choose_order
from samestep.world.rank_discovery import RankInfo
from samestep.world.world import World

Ids = list[tuple[int, int]]


class Numbers(IterableDataset):
    """A dataset of torch, whose rows are their numbers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return ({"x": torch.tensor(number)} for number in range(self.count))


def make_tars(folder: Path, sizes: list[int], content: Any = None) -> list[Path]:
    """Shards in the layout of webdataset, with the numbers of the rows as their contents."""
    number, paths = 0, []
    for shard, size in enumerate(sizes):
        paths.append(folder / f"part-{shard:03}.tar")
        members = []
        for _ in range(size):
            members += [(f"{number:06}.x", str(number).encode()), (f"{number:06}.json", json.dumps(number).encode())]
            number += 1
        write_tar(paths[-1], members)
    return paths


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def make_lines(folder: Path, sizes: list[int]) -> list[Path]:
    number, paths = 0, []
    for shard, size in enumerate(sizes):
        paths.append(folder / f"part-{shard:03}.jsonl")
        paths[-1].write_text("".join(f'{{"x": {number + n}}}\n' for n in range(size)))
        number += size
    return paths


def decode_tar(row: dict[str, Any]) -> dict[str, int]:
    assert row["__key__"] == f"{int(row['x']):06}" and json.loads(row["json"]) == int(row["x"])
    return {"x": int(row["x"])}


def feed_of(
    data: Any,
    *,
    rank: int = 0,
    size: int = 1,
    batch: int = 5,
    micro: int = 3,
    length: int = 12,
    workers: int = 0,
    order: Order | None = None,
    keyed: bool = False,
) -> Feed:
    opened = open_rows(data, None, None, keyed)
    world = World(RankInfo("test", rank, size), torch.device("cpu"))
    order = order or choose_order(opened.rows, None, batch, seed=7)
    seed = 7 if opened.keyed_random else None
    return Feed(opened.rows, order, world, micro_rows=micro, length=length, workers=workers, row_seed=seed)


def rows_seen(feed: Feed, steps: range) -> dict[tuple[int, int, int], float]:
    """What a rank reads: by step, epoch and index, the row; filler rows are left out."""
    seen: dict[tuple[int, int, int], float] = {}
    for step in steps:
        for batch in feed[step].batches:
            for ids, live, x in zip(batch["ids"].tolist(), batch["live"].tolist(), batch["x"].tolist()):
                if live:
                    assert (step, *ids) not in seen, "a row twice"
                    seen[(step, *ids)] = x
    return seen
