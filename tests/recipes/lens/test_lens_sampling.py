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
    network = samestep.load(run, "last").network
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
    weights = samestep.load(run, "last").network.state_dict()
    shutil.rmtree(run)
    found = samestep.load(tmp_path / "exported").network.state_dict()
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
    network = samestep.load(run, "last").network
    adapters = {name: value for name, value in network.named_parameters() if ".lora_" in name}
    assert {name.split(".")[-2] for name in adapters} == {"decoder", "encoder"}
    for name, value in adapters.items():
        assert torch.equal(exported[name], value), name
    assert any(value.abs().sum() > 0 for name, value in adapters.items() if "lora_B" in name), "they were trained"


def test_explain_in_python_gives_what_the_command_does(run: Path) -> None:
    written = sample(run, "--prompt", "a word", "--all", "--samples", "2", "--temperature", "0.7")
    model = samestep.load(run, "last")
    found = model.explain("a word", positions="all", samples=2, temperature=0.7)
    assert [(one.position, one.sample, one.explanation) for one in found] == [
        (record["position"], record["sample"], record["explanation"]) for record in written
    ]
    assert [one.error for one in found] == pytest.approx([record["error"] for record in written])
    for one in found:
        error = (one.activation - one.rebuilt).square().sum() / one.activation.square().sum()
        assert one.error == pytest.approx(float(error), rel=1e-4)


def test_vectors_layers_and_positions_of_ones_own(run: Path) -> None:
    model = samestep.load(run, "last")
    own, other = model.config.layer_l, 1 - model.config.layer_l
    layers = model.explain(["a word", "xy"], positions=[0, -1], layers=[other, own], temperature=0)
    assert [(one.layer, one.prompt, one.position) for one in layers] == [
        (layer, text, position)
        for layer in (other, own)
        for text, position in (("a word", 0), ("a word", 5), ("xy", 0), ("xy", 1))
    ]
    assert not torch.equal(layers[0].activation, layers[4].activation)
    given = torch.stack([one.activation for one in layers[4:]])
    again = model.explain(given, temperature=0)
    assert [one.explanation for one in again] == [one.explanation for one in layers[4:]]
    assert torch.allclose(again[0].rebuilt, layers[4].rebuilt, atol=1e-6) and again[0].prompt is None
    assert model.explain(given[0], temperature=0)[0].explanation == again[0].explanation
    with pytest.raises(samestep.UserError, match="numbers, as activations have, not 3"):
        model.explain(torch.zeros(2, 3))
    with pytest.raises(samestep.UserError, match="from 0 to 1, or from the end, not 2; the text has 2 tokens"):
        model.explain("xy", positions=2)
