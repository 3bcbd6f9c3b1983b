"""Data that only phase 1 learns."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from distill_runs import write_records

from samestep import UserError
from samestep.cli.main import main
from samestep.recipes.distill.config import DataConfig, DistillConfig
from samestep.recipes.distill.data import Text, load_data
from samestep.verify.trace import RecordedLaunch, count_ids


def jsonl(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_phase_1_has_data_of_its_own(tmp_path: Path) -> None:
    train = str(write_records(tmp_path / "train.jsonl", 20))
    held_out = load_data(DistillConfig(data=DataConfig(train=train, validation_fraction=0.2))).held_out
    pairs = jsonl(
        tmp_path / "pairs.jsonl",
        {"query": "p", "passage": "of p"},
        {"query": held_out.queries[0], "passage": "told"},
        {"query": "what is 3", "passage": "of p"},
    )
    texts = jsonl(tmp_path / "texts.jsonl", {"text": "alone"}, {"text": held_out.passages[0]})
    config = DistillConfig(data=DataConfig(train=train, phase1=[f"{pairs}:1", f"{texts}:3"], validation_fraction=0.2))
    data = load_data(config)
    assert data.held_out == held_out and len(data.table.rows) == 16
    parts, weights = data.texts_of_phase(100)
    assert [[data.texts[number] for number in part] for part in parts] == [
        [Text("p", True), Text("of p", False), Text("what is 3", True)],
        [Text("alone", False)],
    ]
    assert weights == [1.0, 3.0]
    assert data.texts_of_phase(1, "texts")[0][0] == parts[0][:1]
    assert data.rows_of_phase(100) == [list(range(16))]
    assert [text.text for text in data.texts[data.held_out_texts.stop :]] == ["p", "of p", "alone"]
    assert {origin.path.name for origin in data.origins} == {"train.jsonl", "pairs.jsonl", "texts.jsonl"}  # type: ignore[union-attr]


def test_only_what_is_held_out(tmp_path: Path) -> None:
    train = str(write_records(tmp_path / "train.jsonl", 20))
    held_out = load_data(DistillConfig(data=DataConfig(train=train))).held_out
    own = jsonl(tmp_path / "own.jsonl", {"query": held_out.queries[0], "passage": "told"})
    with pytest.raises(UserError, match=r"Give every file of data\.phase1 other texts"):
        load_data(DistillConfig(data=DataConfig(train=train, phase1=own)))
    assert load_data(DistillConfig(data=DataConfig(train=train, phase1=own), skip_phase1=True)).first is None


def test_without_records_it_is_beside_the_documentation(tmp_path: Path) -> None:
    own = jsonl(tmp_path / "own.jsonl", {"text": "One is here. Two is there too."})
    data = load_data(DistillConfig(data=DataConfig(phase1=own, limit=14, sentences=True)))
    (part,), _ = data.texts_of_phase(100)
    assert "Two is there too." in {data.texts[number].text for number in part}
    assert data.table.passages[0] not in {data.texts[number].text for number in part}
    assert len(data.origins) == 2, "the file, and the documentation"


@pytest.mark.timeout(300)
def test_it_is_drawn_alike_on_any_number_of_ranks(tmp_path: Path) -> None:
    train = write_records(tmp_path / "train.jsonl", 20)
    texts = jsonl(tmp_path / "texts.jsonl", *({"text": f"text number {n}"} for n in range(30)))
    settings = [f"train_data={train}", f"data.phase1=[{train}:1,{texts}:3]", f"out={tmp_path}", "data.limit=null"]
    settings += ["skip_phase2=true", "evidence=true", "max_steps=8", "bucketed=false"]
    drawn = {}
    for ranks, launch in ((1, []), (2, ["--nproc", "2"])):
        assert main(["train", "distill", *launch, "--preset=verify-live", f"name=ranks_{ranks}", *settings]) == 0
        recorded = RecordedLaunch.read(tmp_path / f"ranks_{ranks}", ranks)
        steps = [step for rank in recorded.ranks for (stage, _), step in rank.items() if stage == "align"]
        drawn[ranks] = count_ids(line for step in steps for line in step.updates)
    assert drawn[1] == drawn[2] and sum(drawn[1].values()) == 40
    assert len(Counter(row for _, row in drawn[1])) > 10
