"""Mixtures of experts, whole or by adapters: what `samestep export` writes is what transformers computes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import samestep
from player_folders import CHATML, EXPERTS, player_folder
from samestep.cli.main import main

pytestmark = pytest.mark.timeout(300)
TOKENS = torch.tensor([[5, 9, 70, 33, 101, 7, 12], [1, 2, 3, 44, 55, 66, 77]])
PLAIN = ["log.quiet=true", "log.tensorboard=false", "distributed.dtype=float32", "max_steps=2"]


def logits(network: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = network.eval()(TOKENS).logits
    return found


def as_transformers_computes(folder: Path, base: Path | None = None) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    network: Any = AutoModelForCausalLM.from_pretrained(base or folder, dtype=torch.float32)
    if base is not None:
        from peft import PeftModel

        network = PeftModel.from_pretrained(network, folder)
    return logits(network)


def check(run: Path, learner: str, base: Path, *, is_adapted: bool) -> None:
    ours = logits(samestep.load(run, "last", learner, dtype="float32").network)
    assert float((ours - as_transformers_computes(base)).abs().max()) > 1e-3, "it was trained"
    export = ["export", str(run), "--learner", learner, "--which", "last"]
    folder = run.parent / f"{run.name}-{learner}"
    assert main([*export, str(folder)]) == 0
    torch.testing.assert_close(as_transformers_computes(folder), ours, rtol=0, atol=1e-5)
    if is_adapted:
        kept = folder.with_name(f"{folder.name}-kept")
        assert main([*export, str(kept), "--adapters", "keep"]) == 0
        torch.testing.assert_close(as_transformers_computes(kept, base), ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize("is_adapted", [False, True], ids=["whole", "adapters"])
@pytest.mark.parametrize("kind", EXPERTS)
def test_a_policy(kind: str, is_adapted: bool, tmp_path: Path) -> None:
    base = player_folder(tmp_path / kind, CHATML, kind=kind)
    pairs = [{"prompt": f"say {n}:", "chosen": f" yes {n}", "rejected": f" no {n}"} for n in range(12)]
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    named = [f"--train_data={tmp_path / 'pairs.json'}", "data.limit=null", f"--base_model_name={base}"]
    adapters = ["model.lora_rank=2", "reference=live", "model.lora_alpha=32"] if is_adapted else []
    common = [f"out={tmp_path}", "name=run", *PLAIN, "learning_rate=0.03"]
    assert main(["train", "dpo", "--preset=verify-text", *common, *named, *adapters]) == 0
    check(tmp_path / "run", "model", base, is_adapted=is_adapted)


def test_a_generator_and_its_judge(tmp_path: Path) -> None:
    base = player_folder(tmp_path / "base", CHATML, kind="mixtral")
    settings = [f"generator.model={base}", f"judge.model={base}", "generator.lora_rank=2", "learning_rate=0.03"]
    assert main(["train", "gan", "--preset=verify", f"out={tmp_path}", "name=run", *PLAIN, *settings]) == 0
    for learner in ("generator", "judge"):
        check(tmp_path / "run", learner, base, is_adapted=learner == "generator")
