"""Cached log-probabilities are those of this very model, or they are refused or computed again."""

import math
from pathlib import Path

import pytest
import torch
from dpo_runs import FLOAT, text_records, train, write_records

from changed_files import changed, fields, last_byte, two_tokens_swapped
from player_folders import CHATML, player_folder
from samestep.cli.main import main

pytestmark = pytest.mark.timeout(600)
CHANGES = {
    "weights": ("model.safetensors", last_byte, "other weights (model.safetensors differs)"),
    "tokenizer": ("tokenizer.json", two_tokens_swapped, "another tokenizer (tokenizer.json differs)"),
    "configuration": ("config.json", fields(rms_norm_eps=0.1), "another configuration (config.json differs)"),
}
KINDS = [(kind, adapters) for kind in CHANGES for adapters in ("lora_rank=0", "lora_rank=4")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return player_folder(tmp_path_factory.mktemp("llama") / "model", template=CHATML)


def settings(model: Path, adapters: str) -> list[str]:
    data = write_records(model.parent / "pairs.jsonl", text_records(16))
    return [f"base_model_name={model}", f"train_data={data}", "data.limit=null", "max_steps=1", adapters]


@pytest.fixture(scope="module")
def runs(model: Path) -> Path:
    """A folder with the references of two runs, without and with adapters."""
    for adapters in ("lora_rank=0", "lora_rank=4"):
        common = [f"out={model.parent}", f"name={adapters}", "log.quiet=true", FLOAT, "until=reference"]
        assert main(["train", "dpo", "--preset", "verify-text", *common, *settings(model, adapters)]) == 0
    return model.parent


def said(capfd: pytest.CaptureFixture[str]) -> str:
    found = capfd.readouterr()
    return " ".join(f"{found.out} {found.err}".split())


@pytest.mark.parametrize(("kind", "adapters"), KINDS)
def test_training_refuses_the_log_probabilities_of_another_model(
    kind: str, adapters: str, runs: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, change, sentence = CHANGES[kind]
    with changed(model / file, change):
        assert main(["train", "--resume", str(runs / adapters), "until=null"]) == 2
    found = said(capfd)
    assert f"the cached log-probabilities of the reference in {runs / adapters}" in found
    assert sentence in found and "start a new run that computes them, or use reference=live" in found


@pytest.mark.parametrize(("kind", "adapters"), KINDS)
def test_another_run_computes_the_log_probabilities_of_another_model_again(
    kind: str, adapters: str, runs: Path, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, change, sentence = CHANGES[kind]
    common = [f"out={tmp_path}", "name=second", FLOAT, f"stages_from={runs / adapters}"]
    with changed(model / file, change):
        code = main(["train", "dpo", "--preset", "verify-text", *common, *settings(model, adapters)])
    found = said(capfd)
    assert code == 0 and "is not taken over from" in found and f"were computed with {sentence}" in found


@pytest.mark.parametrize("setting", ["base_model_name", "init_from"])
def test_other_weights_of_proteins_are_computed_again(
    setting: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, "verify", "max_steps=1", name="first")
    weights = (tmp_path / "first" / "latest_model.pt").rename(tmp_path / "weights.pt")
    named = f"{setting}={weights}"
    train(tmp_path, "verify", "max_steps=1", named, name="second")
    taken = ["max_steps=1", "beta=0.2", named, f"stages_from={tmp_path / 'second'}", "log.quiet=false"]
    train(tmp_path, "verify", *taken, name="third")
    assert "is taken over from" in said(capfd)
    content = torch.load(weights, weights_only=True)
    content["model_state_dict"]["W_out.bias"] += torch.linspace(0, 1, 21)
    torch.save(content, weights)
    rows = train(tmp_path, "verify", *taken, name="fourth")
    assert "is not taken over from" in (found := said(capfd)) and "other weights (weights.pt differs)" in found
    assert abs(rows[0]["dpo"] - math.log(2)) < 1e-5


@pytest.mark.parametrize("adapters", ["lora_rank=0", "lora_rank=4"])
def test_the_same_model_goes_on_and_takes_over(
    adapters: str, runs: Path, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    taken = [f"stages_from={runs / adapters}", "log.quiet=false", *settings(model, adapters), "max_steps=2"]
    rows = train(tmp_path, "verify-text", *taken, name="second")
    assert len(rows) == 2 and "is taken over from" in said(capfd)


def test_a_resumed_policy_has_moved_on_from_its_reference(tmp_path: Path) -> None:
    train(tmp_path, "verify-text", "max_steps=2", "schedule=constant")
    assert main(["train", "--resume", str(tmp_path / "run"), "max_steps=3", "--extend"]) == 0
