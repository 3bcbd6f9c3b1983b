"""What an export of each recipe says: nothing of the machine, and in its card what a user asks of a model."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from samestep.cli.main import main

WORD = "swordfish-42"
RECORDS = {
    "texts.jsonl": [{"text": f"text {n} of some"} for n in range(60)],
    "stories.jsonl": [{"title": f"t{n}", "genre": "g", "human_story": f"story {n} told"} for n in range(40)],
    "pairs.jsonl": [{"prompt": f"say {n}:", "chosen": f" yes {n}", "rejected": f" no {n}"} for n in range(20)],
    "questions.jsonl": [{"query": f"what is {n}", "positive": f"it is {n} of course"} for n in range(40)],
}
QUIET = ["log.quiet=true", "log.tensorboard=false"]


def last_validation(run: Path) -> dict[str, Any]:
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    found: dict[str, Any] = [row for row in rows if any(name.startswith(("val/", "benchmark/")) for name in row)][-1]
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("command", "data", "targets"),
    [
        ("mdlm --preset=verify data.limit=null data.test_fraction=0.2", "texts", ["folder", "one.safetensors"]),
        ("gan --preset=verify", "stories", ["generator", "judge.safetensors"]),
        ("dpo --preset=verify", "", ["folder", "one.safetensors"]),
        ("dpo --preset=verify-text data.limit=null", "pairs", ["folder", "one.safetensors"]),
        ("distill --preset=verify data.limit=null", "questions", ["folder", "one.safetensors"]),
        ("lens --preset=verify evaluation.rows=0", "", ["folder", "one.safetensors"]),
    ],
)
def test_an_export_of_each_recipe(
    command: str, data: str, targets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, recipe = tmp_path / "home" / "alice", command.split()[0]
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_TOKEN", WORD)
    for name, records in RECORDS.items():
        (home / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    setting = "data.path" if recipe in ("mdlm", "gan") else "data.train"
    named = [f"{setting}={home / data}.jsonl"] if data else []
    run = home / f"{WORD}-run"
    assert main(["train", *command.split(), *named, *QUIET, "max_steps=2", f"out={home}", f"name={run.name}"]) == 0
    for target in targets:
        learner = ["--learner", target.partition(".")[0]] if recipe == "gan" else []
        options = ["--license", "mit"] if "." not in target else []
        assert main(["export", str(run), str(tmp_path / "out" / target), *learner, *options]) == 0

    files = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert any(b"samestep" in file.read_bytes() for file in files if file.suffix == ".safetensors")
    for planted in (str(tmp_path), "alice", WORD):
        told = [file.name for file in files if planted.encode() in file.read_bytes()]
        assert not told, f"{planted}: in all bytes of all files, also in the record inside of a single one"

    card = (tmp_path / "out" / targets[0] / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["license"] == "mit"
    for fact in (f"Recipe: `{recipe}`", "Steps: 2", "Seed: 0", "Data: ", "Data for validation: "):
        assert f"\n- {fact}" in card, fact
    assert "\n- Base model: " in card or "\n- Network: built-in (protein)" in card
    assert re.search(r"- Data for training: \d+ rows", card) and (not data or f"- Data: {data}.jsonl" in card)
    known = last_validation(run)
    assert "the part of the data that was kept for validation" in card
    assert ("checkpoints are chosen by that part" in card) == (recipe != "gan")
    for name, value in known.items():
        if "/" in name:
            assert f"| {name.partition('/')[2]} | {value:.4f} |" in card

    monkeypatch.chdir(home)  # where the data is
    found = re.search(r"```sh\n(samestep .*)\n```", card)
    assert found is not None
    assert main([*shlex.split(found[1])[1:], *QUIET, "name=again"]) == 0, found[1]
    assert last_validation(Path("runs/again")) == known, "the command on the card repeats the run"


def test_what_is_not_told_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card whose command lacks a setting says which."""
    monkeypatch.setenv("HF_TOKEN", WORD)
    (tmp_path / f"{WORD}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS["texts.jsonl"]))
    train = ["train", "mdlm", "--preset=verify", f"out={tmp_path}", "name=run", *QUIET, "max_steps=1"]
    assert main([*train, f"data.path={tmp_path / WORD}.jsonl", "data.limit=null"]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "folder")]) == 0
    card = (tmp_path / "folder" / "README.md").read_text()
    assert "# with another data.path, which is not told" in card and "data.limit=null" in card and WORD not in card


def test_a_card_without_what_validation_found(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The file that says it is gone: the export says what is missing in its card."""
    run = tmp_path / "run"
    assert main(["train", "mdlm", "--preset=verify", f"out={tmp_path}", "name=run", "max_steps=2"]) == 0
    (run / "metrics.jsonl").unlink()
    assert main(["export", str(run), str(tmp_path / "folder")]) == 0
    assert "metrics.jsonl ends before step 2: what validation found" in "".join(capfd.readouterr())
    assert "## Evaluation" not in (tmp_path / "folder" / "README.md").read_text()
