"""`samestep export` of a lens: its parts are opened and put together by the code in its card, without samestep."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lens_runs import model_folder, train

import samestep
from samestep.cli.main import main
from samestep.models.residual_stream import ResidualStream
from samestep.recipes.lens.network import Lens

pytestmark = pytest.mark.timeout(900)
TOKENS = [[5, 9, 70, 33]]
WITHOUT_SAMESTEP = """
import json, sys
sys.modules["samestep"] = None
exec(sys.argv[1])
logits = model(torch.tensor(json.loads(sys.argv[2]))).logits
print(json.dumps({"tokens": tokens, "error": float(error), "logits": logits.tolist()}))
"""


@pytest.mark.parametrize(
    ("preset", "kind", "how"),
    [("verify", "", "merge"), ("verify-live", "llama", "merge"), ("verify-live", "gpt2", "keep")],
)
def test_the_card_puts_the_parts_together(tmp_path: Path, preset: str, kind: str, how: str) -> None:
    named = [f"model_name={model_folder(tmp_path / 'model', kind)}"] if kind else []
    settings = ("max_steps=1", "evaluation.rows=0", "distributed.dtype=float32", "learning_rate=0.03")
    run, folder = train(tmp_path, preset, *named, *settings), tmp_path / "exported"
    assert main(["export", str(run), str(folder), "--adapters", how]) == 0
    has_peft = {name: (folder / name / "adapter_config.json").exists() for name in ("decoder", "encoder")}
    assert set(has_peft.values()) == {how == "keep"}
    wanted = explained(run, tmp_path / "of_run.jsonl")
    for path in (run, tmp_path / "model"):
        shutil.rmtree(path, ignore_errors=True)
    again = explained(folder, tmp_path / "of_folder.jsonl")
    assert again["explanation"] == wanted["explanation"] and again["error"] == pytest.approx(wanted["error"], rel=1e-5)
    card = (folder / "README.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", card, re.DOTALL)).replace("path/to/this/folder", str(folder))
    code = code.replace('"The sea is"', '"abc"')
    process = subprocess.run(
        [sys.executable, "-I", "-c", WITHOUT_SAMESTEP, code, json.dumps(TOKENS)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    found = json.loads(process.stdout.splitlines()[-1])
    network = samestep.load(folder).network
    assert isinstance(network, Lens)
    with torch.no_grad():
        logits = ResidualStream(network.model).logits(torch.tensor(TOKENS))
    assert (torch.tensor(found["logits"]) - logits).abs().max() < 1e-5
    assert len(found["tokens"]) == 3 and found["error"] == pytest.approx(wanted["error"], rel=1e-4)
    assert str(tmp_path) not in card + (folder / "samestep.json").read_text()


def explained(source: Path, out: Path) -> dict[str, object]:
    assert main(["sample", str(source), "--prompt", "abc", "--temperature", "0", "--out", str(out)]) == 0
    found: dict[str, object] = json.loads(out.read_text())
    return found


def test_what_a_lens_without_adapters_cannot_keep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path, "verify", "max_steps=1", "evaluation.rows=0")
    assert main(["export", str(run), str(tmp_path / "out"), "--adapters", "keep"]) == 2
    assert "Leave out --adapters: neither decoder nor encoder has any." in capsys.readouterr().err
    assert main(["export", str(run), str(tmp_path / "out"), "--stage", "pretrain"]) == 0
    assert "AutoModelForCausalLM" in capsys.readouterr().out, "the built-in model alone"
    assert (tmp_path / "out" / "tokenizer.json").exists()
