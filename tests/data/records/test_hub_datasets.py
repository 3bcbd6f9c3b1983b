"""Datasets of the Hub: their files are downloaded and read like any others, by configuration and split."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from hub_server import HubServer, serving, use
from samestep.core.errors import UserError
from samestep.data.records.hub import HubDataset, download_records, hub_dataset
from samestep.data.records.reading import Records

huggingface_hub = pytest.importorskip("huggingface_hub")
importlib.import_module("huggingface_hub.errors")


def lines(*texts: str) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


CARD = b"""---
license: mit
configs:
- config_name: short
  data_files:
  - split: train
    path: parts/s-*.jsonl
- config_name: long
  default: true
  data_files: parts/long.jsonl
---
# A dataset
"""
DATASETS = {
    "org/plain": {"data.jsonl": lines("a", "b"), "README.md": b"# Texts"},
    "org/splits": {
        "data/train-00000.jsonl": lines("a"),
        "data/train-00001.jsonl": lines("b"),
        "data/dev.jsonl": lines("c"),
    },
    "org/configs": {"en/train.jsonl": lines("a"), "en/test.jsonl": lines("b"), "de/train.jsonl": lines("c")},
    "org/card": {
        "README.md": CARD,
        "parts/s-1.jsonl": lines("a"),
        "parts/s-2.jsonl": lines("b"),
        "parts/long.jsonl": lines("c"),
    },
    "org/code": {"code.py": b"raise SystemExit", "train.jsonl": lines("a")},
    "org/images": {"a.png": b"x"},
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    download_records.cache_clear()
    with serving(DATASETS) as server:
        use(server.url, tmp_path / "cache", monkeypatch)
        yield server


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("org/plain", "ab"),
        ("hub:org/plain", "ab"),
        ("org/plain@main", "ab"),
        ("org/splits", "ab"),
        ("org/splits:validation", "c"),
        ("org/configs:en", "a"),
        ("org/configs:en:test", "b"),
        ("org/configs:de:train", "c"),
        ("org/card:short", "ab"),
        ("org/card:long:train", "c"),
    ],
)
def test_what_a_name_means(hub: HubServer, name: str, texts: str) -> None:
    records = Records(name)
    assert [row.values["text"] for row in records.rows] == list(texts)
    assert all(origin.path.is_file() for origin in records.origins())


def test_a_problem_is_named_with_its_file(hub: HubServer) -> None:
    hub.models["org/plain"]["data.jsonl"] = lines("a") + b"{"
    records = Records("org/plain")
    assert len(records.rows) == 1
    with pytest.raises(UserError, match=r"Fix 1 of 2 records of org/plain.*\n  line 2 of data\.jsonl: it is not JSON"):
        records.check()


def test_it_is_asked_for_once(hub: HubServer) -> None:
    for _ in range(2):
        assert len(Records("org/splits").rows) == 2
    assert hub.fetched() == ["train-00000.jsonl", "train-00001.jsonl"]


@pytest.mark.parametrize("name", ["org/plain", "org/splits:validation", "org/configs:en:test", "org/card:short"])
def test_the_second_time_it_is_in_the_cache(hub: HubServer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [row.values["text"] for row in Records(name).rows]
    hub.stop()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    download_records.cache_clear()
    assert [row.values["text"] for row in Records(name).rows] == texts


def test_a_part_in_the_cache_is_not_taken_for_all(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    files = download_records(HubDataset("org/splits"))
    files[1].unlink()
    download_records.cache_clear()
    assert len(Records("org/splits").rows) == 2
    hub.stop()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        UserError, match=r"^Unset HF_HUB_OFFLINE, or name a file or folder; org/splits:validation is not"
    ):
        Records("org/splits:validation")


def test_without_a_kept_list_of_files(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions of the client keep none, so what is in the cache may be a part: the Hub is asked."""

    def missing(*args: Any, **options: Any) -> None:
        raise huggingface_hub.errors.CachedRepoTreeNotFoundError("none")

    monkeypatch.setattr("huggingface_hub.get_cached_repo_tree", missing, raising=False)
    for name, count in (("org/splits:validation", 1), ("org/splits", 2), ("org/splits:validation", 1)):
        download_records.cache_clear()
        assert len(Records(name).rows) == count
    assert len(hub.fetched()) == 3


def test_a_line_says_that_it_is_downloaded(hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    hub.models["org/plain"]["data.jsonl"] = lines("a" * 2_000_000)
    for said in ("downloading org/plain (2 MB)", ""):
        assert len(Records("org/plain").rows) == 1
        assert capsys.readouterr().err.strip() == said
        download_records.cache_clear()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("org/code", r"it has a loading script, code\.py, which is not run"),
        ("org/nothing", "there is no file or folder org/nothing .*, and no dataset org/nothing"),
        ("org/plain@other", "Name another revision; org/plain has no other"),
        ("org/configs", "Name a configuration of org/configs, as org/configs:de; it has 'de', 'en'"),
        ("org/configs:fr", "Name a configuration of org/configs"),
        ("org/splits:test", "Name a split of org/splits:test, as org/splits:validation; it has 'validation', 'train'"),
        ("org/images", "org/images has no files with records"),
    ],
)
def test_what_is_refused(hub: HubServer, name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Records(name)


def test_no_network(hub: HubServer) -> None:
    hub.stop()
    with pytest.raises(UserError, match="Connect to a network, or name a file or folder; org/plain is not complete in"):
        Records("org/plain")


def test_paths_on_disk_are_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "mine").mkdir(parents=True)
    for path in ("data/mine", "data/stories.csv", "/data/mine", "a.jsonl", "./a/b", "data/x.jsonl.gz"):
        assert hub_dataset(path) is None
    assert hub_dataset("hub:org/name.csv") is not None
    with pytest.raises(UserError, match=r"data/stories\.csv does not exist"):
        Records("data/stories.csv")
