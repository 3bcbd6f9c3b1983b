"""The examples of the guide: they train, are short, and use only what is public."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import samestep
from samestep.cli.main import main
from toys import run_on_ranks

EXAMPLES = Path(__file__).parents[1] / "examples"
LINES = {
    "before": 35,
    "after": 35,
    "sine": 60,
    "gan": 60,
    "preference": 60,
    "finetune": 90,
    "teacher": 70,
    "own_loop": 35,
    "porting/hf_trainer_before": 40,
    "porting/hf_trainer_after": 60,
    "porting/accelerate_before": 50,
    "porting/accelerate_after": 50,
    "porting/lightning_before": 60,
    "porting/lightning_after": 50,
    "image_classifier": 90,
    "stream": 90,
    "gpt": 90,
    "sequence_classifier": 90,
    "reinforce": 90,
    "ddpm": 90,
    "clip": 90,
}
"""How long each may be, so that the guide stays short."""
TEXTS = "\n\n".join(
    f"a little {one} sat on the {two}" for one in ("cat", "dog", "hen") for two in ("mat", "wall", "hill")
)


@pytest.mark.parametrize("name", LINES)
def test_it_is_short_and_uses_only_public_names(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) <= LINES[name]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom | ast.Import):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert not any(module.startswith("samestep.") for module in modules), f"line {node.lineno}"
        if isinstance(node, ast.ImportFrom) and node.module == "samestep":
            assert {alias.name for alias in node.names} <= set(samestep.__all__)
        if isinstance(node, ast.Attribute):
            assert node.attr == "__init__" or not node.attr.startswith("_"), f"line {node.lineno}: {node.attr}"


def test_no_example_is_left_out() -> None:
    found = {str(path.relative_to(EXAMPLES).with_suffix("")) for path in EXAMPLES.rglob("*.py")}
    assert found == set(LINES)


def trained(folder: Path, name: str, *args: str) -> Path:
    """The directory of a run on two ranks, or on one where arguments are given."""
    command = ["train", str(EXAMPLES / f"{name}.py"), "--preset=verify", "--no-log.tensorboard", *args]
    run_on_ranks(main, 2, [*command, f"--out={folder}", f"--name={name}"], logs=folder / "logs")
    return folder / name


@pytest.mark.parametrize("name", ["after", "gan", "preference", "teacher", "finetune", "stream", "clip"])
def test_it_trains(name: str, tmp_path: Path) -> None:
    assert '"done"' in (trained(tmp_path, name) / "status.json").read_text()


@pytest.mark.timeout(400)
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """Its cells in a process of their own, each shown as a notebook shows it: by the value of its last line."""
    cells = json.loads((EXAMPLES / "trained_models.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    shown = [f"{source.rpartition(chr(10))[0]}\nprint(({source.splitlines()[-1]}))" for source in sources]
    (tmp_path / "cells.py").write_text("\n".join(shown))
    found = subprocess.run(
        [sys.executable, "cells.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert found.returncode == 0, found.stderr
    assert (
        found.stdout.splitlines()[-1] == "(True, True)"
        and "'generate'" in found.stdout
        and "exit_code=0" in found.stdout
    )
    assert not any(cell.get("outputs") for cell in cells), "outputs are not kept"


def test_the_plain_loop_and_the_recipe_fit_the_same_wave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile((EXAMPLES / "before.py").read_text(), "before.py", "exec"), {})
    assert torch.load("net.pt").keys() == samestep.load(str(trained(tmp_path, "after"))).network.state_dict().keys()


def test_pictures_are_the_same_on_two_ranks(tmp_path: Path) -> None:
    run = trained(tmp_path, "ddpm", "--max_steps=3", "--schedule=constant")
    settings = ["--preset=verify", "--max_steps=3", "--schedule=constant", "--no-log.tensorboard", "--quiet"]
    assert main(["train", str(EXAMPLES / "ddpm.py"), *settings, f"--out={tmp_path}", "--name=alone"]) == 0
    pictures = [Image.open(each / "samples/denoise/step_00000003_0.png") for each in (run, tmp_path / "alone")]
    two, one = (np.asarray(picture).astype(int) for picture in pictures)
    assert one.shape == (300, 600) and np.abs(one - two).max() <= 1
    assert one.std() > 10, "there is something in it"


def test_a_policy_gets_better(tmp_path: Path) -> None:
    settings = ["--moves=40", "--max_steps=10", "--global_batch_size=24", "--batch_size=12", "--learning_rate=0.03"]
    run = trained(tmp_path, "reinforce", *settings, "--log.every=1")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    returns = [row["return"] for row in rows if "return" in row]
    assert sum(returns[-3:]) > 1.3 * sum(returns[:3]), returns


def test_a_model_of_transformers_is_tuned_and_goes_out_as_it_came(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    make_model(tmp_path / "model")
    (tmp_path / "texts.txt").write_text(TEXTS)
    run = trained(tmp_path, "finetune", f"--model={tmp_path / 'model'}", f"--texts={tmp_path / 'texts.txt'}")
    assert (run / "artifacts" / "finetune" / "sample.txt").read_text()
    assert main(["export", str(run), str(tmp_path / "tuned.safetensors")]) == 0
    from safetensors.torch import load_file

    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="float32").eval()
    before = plain(torch.arange(12).view(2, 6)).logits
    plain.load_state_dict(load_file(tmp_path / "tuned.safetensors"))
    tuned, loaded = plain(torch.arange(12).view(2, 6)).logits, samestep.load(str(run), "last").network
    assert (tuned - before).abs().max() > 1e-6, "it has learned something"
    torch.testing.assert_close(tuned, loaded(torch.arange(12).view(2, 6)).logits)
    make_model(tmp_path / "model", seed=1)
    with pytest.raises(samestep.UserError, match="were trained on another base than the recipe builds now"):
        _ = samestep.load(str(run)).network
    os.rename(tmp_path / "model", tmp_path / "elsewhere")
    with pytest.raises(samestep.UserError, match="the network of learner 'model' cannot be built again"):
        _ = samestep.load(str(run)).network


def make_model(folder: Path, seed: int = 0) -> None:
    """A tiny model, with a tokenizer whose tokens are letters."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = {chr(code): number for number, code in enumerate(range(32, 127))}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(letters, []))).save_pretrained(folder)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(LlamaConfig(vocab_size=95, max_position_embeddings=512, **shape)).save_pretrained(folder)
