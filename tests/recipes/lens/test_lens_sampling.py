"""`samestep sample` with a trained lens."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lens_runs import model_folder, train

import samestep
from samestep.cli.main import main
from samestep.data.tokenizer.vocabulary import BYTES
from samestep.recipes.lens.network import Lens


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("lens"), "verify-grpo", "evaluation.rows=0")


def sample(run: Path, *options: str) -> list[dict[str, Any]]:
    out = run.parent / "out.jsonl"
    assert main(["sample", str(run), "--out", str(out), *options]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_every_token(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = sample(run, "--prompt", "a word", "--all", "--samples", "2", "--batch_size", "5")
    assert [(record["position"], record["sample"]) for record in found] == [(p, s) for p in range(6) for s in range(2)]
    assert [record["token"] for record in found[::2]] == list("a word")
    assert (found[4]["before"], found[4]["after"]) == ("a ", "ord")
    assert "[w]" in capsys.readouterr().out
    assert any(one["explanation"] != other["explanation"] for one, other in zip(found[::2], found[1::2], strict=True))
    again = sample(run, "--prompt", "a word", "--all", "--samples", "2")
    assert [record["explanation"] for record in again] == [record["explanation"] for record in found]


def test_error_is_that_of_the_network(run: Path) -> None:
    (found,) = sample(run, "--prompt", "a word", "--temperature", "0")
    network = samestep.load(run, "last")
    batch = {"tokens": torch.tensor([[BYTES.bos, *b"a word"]]), "position": torch.tensor([6])}
    with torch.no_grad():
        activation = network(batch, Lens.activation)["activation"]
        greedy = network({**batch, "ids": torch.zeros(1, 2, dtype=torch.int64)}, Lens.explain_greedily)
    error = (activation - greedy["rebuilt"]).square().sum() / activation.square().sum()
    assert found["error"] == pytest.approx(float(error))
    assert found["position"] == 5
    assert sample(run, "--prompt", "a word", "--position", "-1", "--temperature", "0") == [found]


def test_several_texts_are_explained_as_each_alone(run: Path, tmp_path: Path) -> None:
    """Also those that are shorter than others of their batch. The noise of the first text is that of a single one."""
    texts = ["a word", "a longer text", "x"]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    found = sample(run, "--prompts", str(tmp_path / "texts.txt"), "--temperature", "0")
    assert [record["prompt"] for record in found] == texts
    for text, record in zip(texts, found, strict=True):
        (alone,) = sample(run, "--prompt", text, "--temperature", "0")
        assert alone["explanation"] == record["explanation"]
        assert alone["error"] == pytest.approx(record["error"])
    drawn = sample(run, "--prompts", str(tmp_path / "texts.txt"), "--samples", "2")
    assert [(record["prompt"], record["sample"]) for record in drawn] == [(text, n) for text in texts for n in (0, 1)]
    first = sample(run, "--prompt", texts[0], "--samples", "2")
    assert [record["explanation"] for record in first] == [record["explanation"] for record in drawn[:2]]


def test_temperature(run: Path) -> None:
    """Near 0 it draws the likeliest tokens."""
    (greedy,) = sample(run, "--prompt", "a word", "--temperature", "0")
    cold = sample(run, "--prompt", "a word", "--temperature", "1e-6", "--samples", "3")
    warm = sample(run, "--prompt", "a word", "--temperature", "3", "--samples", "3")
    assert {record["explanation"] for record in cold} == {greedy["explanation"]}
    assert len({record["explanation"] for record in warm}) > 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "Give a text with --prompt, or a file"),
        (["--prompt", "abc", "--position", "3"], "Set --position from 0 to 2"),
        (["--prompt", "abc", "--position", "1", "--all"], "Give --position or --all, not both."),
        (["--prompt", "abc", "--temperature", "-1"], "temperature must be a number of at least 0"),
        (["--prompt", "abc", "--temperature", "1e-300"], "temperature must be 1e-06 or more, or 0 for the likeliest"),
        (["--prompt", "abc", "--samples", "0"], "samples must be a whole number of at least 1"),
    ],
)
def test_options_that_cannot_be(
    run: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    assert main(["sample", str(run), *options]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("model", ["", "gpt2"])
def test_an_exported_lens_needs_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str) -> None:
    """It has all weights, also those of the built-in model that its run had trained."""
    named = [f"model_name={model_folder(tmp_path / 'model', model)}"] if model else []
    run = train(tmp_path, "verify", *named, "max_steps=1", "evaluation.rows=0")
    assert main(["export", str(run), str(tmp_path / "exported")]) == 0
    weights = samestep.load(run, "last").state_dict()
    shutil.rmtree(run)
    found = samestep.load(tmp_path / "exported").state_dict()
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], value) for name, value in weights.items())
    capsys.readouterr()
    assert main(["sample", str(tmp_path / "exported"), "--prompt", "abc"]) == 0
    assert "ab[c]" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "exported")]) == 2
    assert "Name the run" in capsys.readouterr().err


def test_adapters_of_decoder_and_encoder_are_loaded_and_exported_but_not_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("peft")
    run = train(tmp_path, "verify-live", "evaluation.rows=0")
    assert main(["export", str(run), str(tmp_path / "lens.safetensors")]) == 2
    assert "(decoder, encoder) act one at a time and cannot be added to one base" in capsys.readouterr().err
    assert not (tmp_path / "lens.safetensors").exists()
    assert main(["export", str(run), str(tmp_path), "--weights"]) == 0
    (file,) = tmp_path.glob("*.pt")
    exported = torch.load(file)
    network = samestep.load(run, "last")
    adapters = {name: value for name, value in network.named_parameters() if ".lora_" in name}
    assert {name.split(".")[-2] for name in adapters} == {"decoder", "encoder"}
    for name, value in adapters.items():
        assert torch.equal(exported[name], value), name
    assert any(value.abs().sum() > 0 for name, value in adapters.items() if "lora_B" in name), "they were trained"
