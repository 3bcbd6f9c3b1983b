"""Datasets of the Hub that settings name: each host downloads them once, whatever the number of ranks."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hub_server import constants_of, serving
from samestep.data.records.downloads import download_datasets
from samestep.data.records.reading import RecordsConfig
from samestep.world.world import World
from toys import run_on_ranks

pytest.importorskip("huggingface_hub")
FILES = {
    f"{split}/{part}.jsonl": json.dumps({"text": f"{split} {part}"}).encode()
    for split in ("train", "test")
    for part in range(2)
}


@dataclass(frozen=True)
class Data(RecordsConfig):
    path: list[str] = field(default_factory=lambda: ["org/records:2", "org/records:test:1"])


@dataclass(frozen=True)
class Settings:
    data: Data = field(default_factory=Data)
    size: int = 3


def read_on_ranks(url: str, cache: str, each: bool) -> None:
    """Download, and read what was downloaded on every rank, with a cache for all or one for each."""
    from huggingface_hub import constants

    world = World.join(device="cpu", timeout=30)
    for name, value in constants_of(url, f"{cache}{world.rank}" if each else cache).items():
        setattr(constants, name, value)
    if each:  # ranks with caches of their own are on hosts of their own
        World.host = f"host{world.rank}"  # type: ignore[assignment, method-assign]
    data = Data()
    download_datasets(Settings(data), world)
    texts = [row.values["text"] for row in data.records(data.path).rows]
    assert texts == ["train 0", "train 1", "test 0", "test 1"]
    world.leave()


def download_beside_a_folder(url: str, cache: str) -> None:
    """Rank 1 has a folder of the dataset's name."""
    from huggingface_hub import constants

    world = World.join(device="cpu", timeout=30)
    for name, value in constants_of(url, cache).items():
        setattr(constants, name, value)
    if world.rank == 1:
        Path(cache, "here/org/records").mkdir(parents=True)
        os.chdir(Path(cache, "here"))
    download_datasets(Settings(), world)
    assert world.gather(world.rank) == [0, 1], "no rank is a message behind"
    world.leave()


@pytest.mark.timeout(300)
def test_a_folder_on_one_host_keeps_no_other_waiting(tmp_path: Path) -> None:
    with serving({"org/records": FILES}) as server:
        run_on_ranks(download_beside_a_folder, 2, server.url, f"{tmp_path}/cache", logs=tmp_path / "logs")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("each", [False, True])
def test_two_ranks_request_each_file_once(each: bool, tmp_path: Path) -> None:
    with serving({"org/records": FILES}) as server:
        for again in (False, True):
            output = run_on_ranks(read_on_ranks, 2, server.url, f"{tmp_path}/cache", each, logs=tmp_path / "logs")
            assert ("downloading org/records (" in output) is not again
            assert server.fetched() == ([] if again else sorted([f"{n}.jsonl" for n in (0, 1, 0, 1)] * (1 + each)))
            assert not (again and server.requests), "the second time from the cache"
            server.requests.clear()
