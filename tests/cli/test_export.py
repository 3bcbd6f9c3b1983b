"""`samestep export` as its users run it: a run becomes a folder, and the folder the beginning of another run."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cli.conftest import Shell
from samestep.cli.main import main

pytestmark = pytest.mark.timeout(900)
MDLM = ["train", "mdlm", "--preset=verify", "--distributed.dtype=float32", "--max_steps=2", "--samples_at_end=0"]


def test_a_run_goes_out_and_comes_back(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell(*MDLM, "--name", "a")[0] == [0]
    assert main(["export", "a", "out", "--max_shard_size", "20kB"]) == 0
    assert "exported runs/a/checkpoints/pretrain/step_00000002 to out: 0.1 MB as fp32 in 3" in capsys.readouterr().out
    codes, output = shell(*MDLM, "--name", "b", "--learning_rate=0", "--init_from", "out")
    assert codes == [0], output
    assert main(["export", "b", "back", "--max_shard_size", "1GB"]) == 0
    there = {name: tensor for file in Path("out").glob("*.safetensors") for name, tensor in load_file(file).items()}
    back = load_file("back/model.safetensors")
    assert there.keys() == back.keys()
    assert all(torch.equal(there[name], back[name]) for name in there), "with a rate of zero the weights stay"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["a"], "two arguments are expected, not 1; the command is: samestep export RUN"),
        (["a", "b", "--half"], "there is no option --half"),
        (["a", "b", "--dtype", "fp8"], "--dtype must be bf16 or fp32, not 'fp8'"),
        (["a", "b", "--max_shard_size", "much"], "'much' is not a size"),
        (["a", "b", "--max_shard_size", "0"], "must be above zero"),
        (["a", "b"], "'a' is not a run directory"),
    ],
)
def test_bad_words_are_refused(
    args: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", *args]) == 2
    assert sentence in capsys.readouterr().err
