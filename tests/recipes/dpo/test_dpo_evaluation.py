"""`samestep evaluate`: which records it takes, and the same metrics as in training, on any number of ranks."""

import json
from pathlib import Path
from typing import Any

import pytest
from dpo_runs import text_records, train, validations_of, write_records

from player_folders import CHATML, player_folder
from samestep.cli.main import main

pytestmark = pytest.mark.timeout(600)


def evaluated(run: Path, *options: str) -> dict[str, Any]:
    file = run.parent / f"{run.name}.json"
    assert main(["evaluate", str(run), "--out", str(file), "--device", "cpu", *options]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    file.unlink()
    return found


@pytest.mark.parametrize("reference", ["cached", "live"])
@pytest.mark.parametrize("preset", ["verify", "verify-text"])
def test_without_a_test_part_it_is_validation_again(preset: str, reference: str, tmp_path: Path) -> None:
    train(tmp_path, preset, f"reference={reference}")
    known = validations_of(tmp_path / "run")[-1]
    found = evaluated(tmp_path / "run")
    assert found["part"] == "validation" and "which chose the best weights" in found["notes"][0]
    metrics = {name.removeprefix("val/"): value for name, value in known.items() if name.startswith("val/")}
    assert metrics.keys() <= found.keys()
    assert {name: found[name] for name in metrics} == pytest.approx(metrics, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("reference", ["cached", "live"])
def test_adapters(reference: str, tmp_path: Path) -> None:
    model = player_folder(tmp_path / "model", template=CHATML)
    data = write_records(tmp_path / "pairs.jsonl", text_records(16))
    named = [f"base_model_name={model}", f"train_data={data}", "data.limit=null"]
    train(tmp_path, "verify-text", *named, "lora_rank=4", "learning_rate=0.1", f"reference={reference}")
    known = validations_of(tmp_path / "run")[-1]
    found = evaluated(tmp_path / "run")
    for name in ("loss", "kl", "margin"):
        assert found[name] == pytest.approx(known[f"val/{name}"], rel=1e-4)


def test_test_records_are_in_no_other_part(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = write_records(tmp_path / "pairs.jsonl", text_records(30))
    train(tmp_path, "verify-text", f"train_data={data}", "data.limit=null", "data.test_fraction=0.3", "max_steps=2")
    log = next((tmp_path / "run" / "logs").glob("*0*")).read_text()
    assert "15 pairs for training, 6 pairs for validation, 9 pairs for test (split by prompt)" in log
    found = evaluated(tmp_path / "run", "--batch_size", "2")
    assert (found["part"], found["pairs"]) == ("test", 9) and 0 <= found["accuracy"] <= 1
    assert found["notes"][0] == "the test part, by which nothing was chosen"
    shown = " ".join(capfd.readouterr().out.split())
    assert "part test pairs 9" in shown and "the test part, by which nothing was chosen" in shown
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu", "data.test_fraction=0.5"]) == 2
    assert "Leave out data.test_fraction: what was held back" in capfd.readouterr().err
    data.write_text(data.read_text().replace("yes", "no!"))
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu"]) == 2
    assert "the content of pairs.jsonl has changed" in " ".join(capfd.readouterr().err.split())


def test_the_reference_is_that_of_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, "verify", "max_steps=1", name="first")
    weights = (tmp_path / "first" / "latest_model.pt").rename(tmp_path / "weights.pt")
    train(tmp_path, "verify", "max_steps=2", f"base_model_name={weights}", name="second")
    known = validations_of(tmp_path / "second")[-1]
    assert evaluated(tmp_path / "second")["kl"] == pytest.approx(known["val/kl"], rel=1e-4)
    train(tmp_path, "verify", "max_steps=3", name="third")
    (tmp_path / "third" / "latest_model.pt").rename(weights)
    assert main(["evaluate", str(tmp_path / "second"), "--device", "cpu"]) == 2
    assert "Put back the weights that" in capfd.readouterr().err
    assert main(["evaluate", str(weights), "--device", "cpu"]) == 2
    assert "Name the run, or a checkpoint in it" in " ".join(capfd.readouterr().err.split())
