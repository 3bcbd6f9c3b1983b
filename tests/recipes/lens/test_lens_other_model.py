"""A language model that changes in any way is another one: tokens and activations of it are refused or made again."""

from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from lens_runs import model_folder, train

from changed_files import changed, fields, last_byte, two_tokens_swapped
from samestep.cli.main import main
from samestep.core.json_files import read_json

pytestmark = pytest.mark.timeout(600)
CHANGES = {
    "weights": ("model.safetensors", last_byte, "other weights (model.safetensors differs)"),
    "tokenizer": ("tokenizer.json", two_tokens_swapped, "another tokenizer (tokenizer.json differs)"),
    "configuration": ("config.json", fields(rms_norm_eps=0.1), "another configuration (config.json differs)"),
}
FEW = ("distributed.dtype=float32", "max_steps=1", "validate_every=0", "evaluation.rows=0")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("lens") / "model", initializer_range=0.3)


@pytest.fixture(scope="module")
def runs(model: Path) -> Path:
    """A folder with a run that has trained, and two that have tokens, or activations, and no more."""
    for name, more in {"whole": [], "tokens": ["until=pretokenize"], "dumped": ["until=dump"]}.items():
        train(model.parent, "verify", f"model_name={model}", *FEW, *more, name=name)
    return model.parent


def with_change(model: Path, kind: str) -> AbstractContextManager[None]:
    file, change, _ = CHANGES[kind]
    return changed(model / file, change)


def said(capfd: pytest.CaptureFixture[str]) -> str:
    found = capfd.readouterr()
    return " ".join(f"{found.out} {found.err}".split())


@pytest.mark.parametrize("kind", CHANGES)
def test_training_refuses_activations_of_another_model(
    kind: str, runs: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with with_change(model, kind):
        assert main(["train", "--resume", str(runs / "dumped"), "until=null"]) == 2
    wanted = f"were computed with {CHANGES[kind][2]}; dump them again in a new run, or name another dump"
    assert f"the activations in {runs / 'dumped'}" in (found := said(capfd)) and wanted in found


def test_a_layer_that_a_named_model_lacks(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "lens", "--preset=verify", f"model_name={model}", "layer_l=99", f"out={tmp_path}"]) == 2
    found = said(capfd)
    assert "Set layer_l from 0 to " in found and ": the model has " in found and "it is 99." in found


def test_a_dump_refuses_tokens_of_another_tokenizer(runs: Path, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with with_change(model, "tokenizer"):
        assert main(["train", "--resume", str(runs / "tokens"), "until=null"]) == 2
    wanted = f"were computed with {CHANGES['tokenizer'][2]}; start a new run"
    assert f"the tokens of the texts in {runs / 'tokens'}" in (found := said(capfd)) and wanted in found


@pytest.mark.parametrize("kind", ["tokenizer", "configuration"])
def test_evaluate_refuses_activations_of_another_model(
    kind: str, runs: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with with_change(model, kind):
        assert main(["evaluate", str(runs / "whole"), "--limit", "2"]) == 2
    assert f"were computed with {CHANGES[kind][2]}; dump them again" in said(capfd)


def test_evaluate_refuses_a_network_around_another_model(
    runs: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with with_change(model, "weights"):
        assert main(["evaluate", str(runs / "whole"), "--limit", "2"]) == 2
    assert "were trained on another base than the recipe builds now" in said(capfd)
    assert main(["evaluate", str(runs / "whole"), "--limit", "2"]) == 0


@pytest.mark.parametrize("kind", CHANGES)
def test_another_run_dumps_activations_of_another_model_again(
    kind: str, runs: Path, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    taken = [f"model_name={model}", *FEW, f"stages_from={runs / 'whole'}", "until=dump", "log.quiet=false"]
    with with_change(model, kind):
        again = train(tmp_path, "verify", *taken)
    found, stage = said(capfd), "pretokenize" if kind == "tokenizer" else "dump"
    assert f"stage '{stage}' is not taken over from {runs / 'whole'}:" in found
    assert f"there were computed with {CHANGES[kind][2]}" in found
    assert "taken_over_from" not in read_json(again / "artifacts" / "dump" / "done.json")
    with with_change(model, kind):
        train(tmp_path, "verify", f"model_name={model}", *FEW, f"activation_dumper.source={again}", name="with_it")


def test_the_built_in_model_of_another_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its weights are an artifact of the run: they are taken over with it, and compared there."""
    first = train(tmp_path, "verify", *FEW, name="first")
    train(tmp_path, "verify", *FEW, "stages_from=first", "until=dump", "log.quiet=false", name="second")
    assert said(capfd).count("is taken over from") == 3
    with changed(first / "artifacts" / "pretrain" / "model.safetensors", last_byte):
        train(tmp_path, "verify", *FEW, "stages_from=first", "until=dump", "log.quiet=false", name="third")
    assert "stage 'dump' is not taken over" in (found := said(capfd))
    assert "the activations there were computed with other weights (model.safetensors differs)" in found
