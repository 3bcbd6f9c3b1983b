"""Every recipe reads every kind of file, and says the same about a damaged one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data.records.test_reading import KINDS, write
from hub_server import serving, use
from samestep.core.errors import UserError
from samestep.data.records.hub import download_records
from samestep.recipes.distill.config import DataConfig as DistillData
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import load_data
from samestep.recipes.dpo.config import DataConfig as DpoData
from samestep.recipes.dpo.config import DpoConfig
from samestep.recipes.dpo.text_family import TextFamily
from samestep.recipes.gan.data import DataConfig as GanData
from samestep.recipes.gan.data import load as load_stories
from samestep.recipes.lens.config import DataConfig as LensData
from samestep.recipes.lens.texts import load_texts
from samestep.recipes.mdlm.corpus import DataConfig as MdlmData
from samestep.recipes.mdlm.corpus import load as load_corpus
from samestep.world.world import World

COLUMNS = ("prompt", "chosen", "rejected", "query", "passage", "title", "genre", "human_story", "text")
RECORDS = [{name: f"{name} number {n}, which is long enough" for name in COLUMNS} for n in range(40)]


def mdlm(path: str, **options: Any) -> int:
    corpus = load_corpus(MdlmData(path, sequence_length=8, **options))
    return corpus.train.size + corpus.validation.size


def gan(path: str, **options: Any) -> int:
    found = load_stories(GanData(path, **options), seed=0)
    return len(found.train) + len(found.validation)


def dpo(path: str, **options: Any) -> int:
    config = DpoConfig(family="text", data=DpoData(path, **options))
    found = TextFamily(config, World.single()).pairs()
    return len(found.train) + len(found.validation)


def distill(path: str, **options: Any) -> int:
    found = load_data(DistillConfig(data=DistillData(path, **options)))
    return len(found.table.queries) + len(found.held_out.queries)


def lens(path: str, **options: Any) -> int:
    return len(list(load_texts(LensData(path, **options), 0).pieces()))


READERS: dict[str, Callable[..., int]] = {"mdlm": mdlm, "gan": gan, "dpo": dpo, "distill": distill, "lens": lens}
every_recipe = pytest.mark.parametrize("read", READERS.values(), ids=READERS)


@every_recipe
@pytest.mark.parametrize("name", KINDS)
def test_every_kind(read: Callable[..., int], name: str, tmp_path: Path) -> None:
    found = read(str(write(tmp_path / name, RECORDS)))
    assert found >= 40 and found == read(str(write(tmp_path / "b.jsonl", RECORDS)))


@every_recipe
def test_folders(read: Callable[..., int], tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(RECORDS).save_to_disk(tmp_path / "saved")
    (tmp_path / "several").mkdir()
    write(tmp_path / "several" / "a.csv.gz", RECORDS[:20])
    write(tmp_path / "several" / "b.parquet", RECORDS[20:])
    one = read(str(write(tmp_path / "a.jsonl", RECORDS)))
    assert read(str(tmp_path / "saved")) == read(str(tmp_path / "several")) == one


@every_recipe
def test_columns_of_another_name(read: Callable[..., int], tmp_path: Path) -> None:
    renamed = [{f"my_{name}": value for name, value in record.items()} for record in RECORDS]
    needed = {gan: ("title", "genre", "human_story"), dpo: COLUMNS[:3], distill: ("query", "passage")}.get(
        read, ("text",)
    )
    columns = {name: f"my_{name}" for name in needed}
    path = str(write(tmp_path / "b.jsonl", renamed))
    assert read(path, columns=columns) == read(str(write(tmp_path / "a.jsonl", RECORDS)))
    with pytest.raises(UserError, match=r"Correct data\.columns\.\w+=gone: "):
        read(path, columns={**columns, needed[0]: "gone"})


@every_recipe
def test_a_damaged_file_gives_the_same_sentence(read: Callable[..., int], tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", RECORDS)
    path.write_bytes(path.read_bytes() + b'{"text": \n\n["a"]\n{"text": "\xff"}\n{"a": 1, "a": 2}\n')
    with pytest.raises(UserError) as refusal:
        read(str(path))
    assert str(refusal.value).splitlines() == [
        f"Fix 4 of 44 records of {path}, or leave them out with data.skip_invalid=true:",
        "  line 41: it is not JSON: Expecting value at column 10",
        '  line 43: it is no JSON object such as {"text": ...}',
        "  line 44: it is not UTF-8 at byte 11",
        "  line 45: it cannot be read as JSON: the key 'a' comes twice",
    ]
    assert read(str(path), skip_invalid=True) == read(str(write(tmp_path / "b.jsonl", RECORDS)))


@every_recipe
def test_datasets_of_the_hub(read: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "train.jsonl", RECORDS)
    other = write(tmp_path / "test.csv", RECORDS[:30])
    download_records.cache_clear()
    files = {"data/train.jsonl": file.read_bytes(), "data/test.csv": other.read_bytes()}
    with serving({"org/records": files}) as hub:
        use(hub.url, tmp_path / "cache", monkeypatch)
        assert read("org/records") == read(str(file))
        assert read("hub:org/records:test") == read(str(other))
