"""What a run hands over: never less than phase 1 without a word; folders without local paths."""

import json
from pathlib import Path

import pytest
from distill_runs import train, validations_of

from samestep.cli.main import main
from samestep.core.json_files import read_json
from samestep.core.rundir import RunDir
from samestep.models.sentence_export import write_encoder
from samestep.models.small_encoder import small_encoder
from samestep.recipes.distill import recipe
from samestep.recipes.distill.data import load_data
from samestep.train.weights.run_checkpoints import choose_checkpoint

LOST = "phase 2 found nothing better by val/ndcg@10: the student is the one that it began with"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, and records whose queries have words of their passages: random vectors find these."""
    folder = tmp_path_factory.mktemp("homefolder")
    names = [f"{first}{last}" for first in "bdfgklmnprst" for last in ("alo", "emi", "ira", "oku", "une", "asi")]
    records = [{"query": f"who is {name}", "positive": f"{name} is number {n}"} for n, name in enumerate(names)]
    (folder / "records.jsonl").write_text("\n".join(map(json.dumps, records)))
    for name in ("teacher", "student"):
        source = small_encoder([record["positive"] for record in records], width=16, layers=1, heads=2, vocabulary=600)
        write_encoder(folder / name, source, source.load().state_dict(), "")
    return folder


def settings(home: Path) -> list[str]:
    data = [f"data.train=[{home / 'records.jsonl'}:2]", "data.limit=null", "data.validation_fraction=0.3"]
    models = [f"{name}_model={home / name}" for name in ("teacher", "student")]
    return [*data, *models, "max_steps=3", "validate_every=1", "log.quiet=false"]


def test_a_phase_2_that_makes_it_worse_hands_over_phase_1(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A rate at which it loses what it knew. The folder says the steps that were done, and no place of this machine."""
    written = ["save_to_artifacts=true", f"artifacts_dir={home / 'artifacts'}"]
    run = train(home, "verify", *settings(home), "phase2_lr=1", *written, name="worse")
    assert LOST in " ".join(capfd.readouterr().out.split())
    before, after = (validations_of(run, stage) for stage in ("align", "rank"))
    best = max(row["val/ndcg@10"] for row in before)
    assert after[0]["step"] == 0 and after[0]["val/ndcg@10"] == pytest.approx(best, abs=1e-6)
    assert main(["export", str(run), str(home / "exported")]) == 0
    steps = int(choose_checkpoint(RunDir(run), "best", stage="align").name.rpartition("_")[2])
    assert 1 <= steps <= 3
    for folder in (home / "artifacts" / "worse", home / "exported"):
        card = (folder / "README.md").read_text()
        assert "- Phase 2: none of its steps made it better" in card and f"{best:.4f}" in card
        assert f"- Phase 1: 0.4 mse + 0.6 cosine_distance; {steps:,} steps, rate 0.003" in card
        assert "- Data: records.jsonl:2\n" in card and "vectors of `teacher`" in card and "license: unknown" in card
        assert "- Base model: `student`" in card and "- Seed: " in card and "samestep train distill --preset" in card
        assert "- Queries for validation: 22" in card and "- Data for training: 50 rows of records.jsonl" in card
        texts = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        assert not [file for file, text in texts.items() if home.name.encode() in text]
    capfd.readouterr()
    assert main(["evaluate", str(run), "--out", str(home / "found.json"), "--no-teacher"]) == 0
    assert read_json(home / "found.json")["models"]["student"]["16"]["ndcg@10"] == pytest.approx(best, abs=1e-6)
    assert "the validation part, which chose the best weights" in " ".join(capfd.readouterr().out.split())


def test_who_wants_the_last_state_is_told_what_it_lost(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(home, "verify", *settings(home), "phase2_lr=1", "best_at_end=false", name="last")
    assert "the last student is not the best by val/ndcg@10: that is of step 0" in " ".join(
        capfd.readouterr().out.split()
    )


def test_a_test_part_is_in_neither_training_nor_validation(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = recipe.config()
    config = type(config)(data=type(config.data)(train=str(home / "records.jsonl"), test_fraction=0.25))
    data = load_data(config)
    assert data.test is not None and len(data.test.queries) == 18
    assert not set(data.test.queries) & {*data.table.queries, *data.held_out.queries}
    assert len(data.table.queries) + len(data.held_out.queries) == 54
    without = load_data(type(config)(data=type(config.data)(train=str(home / "records.jsonl"))))
    assert without.test is None and without.held_out == data.held_out and without.digest != data.digest
    run = train(home, "verify", *settings(home), "data.test_fraction=0.25", "skip_phase1=true", name="tested")
    capfd.readouterr()
    assert main(["evaluate", str(run), "--out", str(home / "found.json")]) == 0
    found = read_json(home / "found.json")
    assert (found["part"], found["queries"]) == ("test", 18) and found["models"]["teacher"]
    assert "the test part, by which nothing was chosen" in " ".join(capfd.readouterr().out.split())
    assert main(["train", "distill", "--preset", "verify", f"out={home}", "data.test_fraction=0.1"]) == 2
    assert "the documentation inside Python has no test part" in capfd.readouterr().err


def test_losses_of_negatives_are_refused_before_the_teacher(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (home / "pairs.jsonl").write_text("".join(f'{{"query": "q {n}", "positive": "p {n}"}}\n' for n in range(9)))
    for more, sentence in (
        ([f"train_data={home / 'pairs.jsonl'}"], "Give records negatives, or set mining.negatives: there are none"),
        (["negatives=0"], "Set negatives to 1 or more: with 0 there is nothing to compare for rank.margin_mse"),
    ):
        common = [*settings(home), f"out={home / 'refused'}", "rank.margin_mse=1"]
        assert main(["train", "distill", "--preset", "verify", *common, *more]) == 2
        assert sentence in " ".join(capfd.readouterr().err.split())
        assert not (home / "refused").exists()
