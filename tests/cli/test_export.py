"""`samestep export` as its users run it: a run becomes a folder, and the folder the beginning of another run."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cli.conftest import Shell
from samestep.cli.main import main
from samestep.kit import transformers_export
from samestep.launching.local import start
from toys import PRELOAD

pytestmark = pytest.mark.timeout(900)
MDLM = ["train", "mdlm", "--preset=verify", "--distributed.dtype=float32", "--max_steps=2", "--log.samples=0"]


def test_a_run_goes_out_and_comes_back(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell(*MDLM, "--name", "a")[0] == [0]
    assert main(["export", "a", "out", "--max_shard_size", "20kB"]) == 0
    assert "exported runs/a/checkpoints/pretrain/step_00000002 to out: 0.1 MB in 3" in capsys.readouterr().out
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


def export_killed_before_the_card(*words: str) -> None:
    transformers_export.write_card = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # everything else is written
    main(["export", "g", *words, "--learner", "judge"])


def export_killed_at_the_name(*words: str) -> None:
    """All of it is written, and only the name is missing."""

    def kill(source: Any, target: Any, **options: Any) -> None:
        if os.path.basename(target) == words[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target, **options)

    rename, os.replace, os.rename = os.rename, kill, kill
    main(["export", *words])


def killed(export: Callable[..., None], *words: str) -> bool:
    """Whether this export, in a process of its own, was killed."""
    workers = start(export, 1, *words, logs=Path.cwd() / f"killed_{words[-1]}", preload=PRELOAD)
    return workers.wait(100) == [-signal.SIGKILL]


def test_a_killed_export_leaves_nothing_that_looks_finished(shell: Shell) -> None:
    """The process is killed when all but the card is written; an older folder of that name stays as it was."""
    assert shell("train", "gan", "--preset=verify", "--max_steps=1", "--name", "g")[0] == [0]
    for more in ([], ["--overwrite"]):
        before = {file: file.read_bytes() for file in Path("out").glob("*")}
        assert killed(export_killed_before_the_card, "out", *more)
        (left,) = Path().glob(".out.*.tmp")
        assert (left / "model.safetensors").exists() and not (left / "samestep.json").exists()
        assert {file: file.read_bytes() for file in Path("out").glob("*")} == before
        assert main(["export", "g", "out", "--learner", "judge", *more]) == 0
        assert not list(Path().glob(".out.*")), "what the kill left is removed"


def test_no_kind_of_export_has_its_name_before_all_is_written(shell: Shell) -> None:
    """A folder of sentence-transformers, one safetensors file, one .pt file."""
    assert main(["train", "distill", "--preset=verify", "--max_steps=1", "--name", "d", "--no-log.tensorboard"]) == 0
    exports = [["d", "student"], ["d", "one.safetensors"], ["d", "one.pt", "--weights"]]
    for words in exports:
        assert killed(export_killed_at_the_name, *words), words
    targets = [Path(words[1]) for words in exports]
    assert not [target for target in targets if target.exists()]
    left = {path.name for path in Path().iterdir() if path.name.endswith(".tmp")}
    assert len(left) == 3 and all(name.startswith((".student.", ".one.")) for name in left)
    for words in exports:
        assert main(["export", *words]) == 0
    assert all(target.exists() for target in targets)


def test_only_what_was_exported_is_replaced(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("train", "gan", "--preset=verify", "--max_steps=1", "--name", "g")[0] == [0]
    other = Path("other")
    for name in ("config.json", "model.safetensors"):
        other.mkdir(exist_ok=True)
        (other / name).write_text("somebody's")
    export = ["export", "g", "--learner", "judge"]
    for more in ([], ["--overwrite"]):
        assert main([*export[:2], "other", *export[2:], *more]) == 2
        assert "other exists and was not exported by samestep" in capsys.readouterr().err
    Path("out").mkdir()
    assert main([*export[:2], "out", *export[2:]]) == 0, "an empty folder is fine"
    assert main([*export[:2], "out", *export[2:]]) == 2
    assert "replace it with --overwrite" in capsys.readouterr().err
    assert main([*export[:2], "out", *export[2:], "--adapters", "keep", "--overwrite"]) == 2
    assert main([*export[:2], "out", *export[2:], "--dtype", "bf16", "--overwrite"]) == 0
    Path("out/notes.txt").write_text("mine")
    assert main([*export[:2], "out", *export[2:], "--overwrite"]) == 2
    assert "out also holds notes.txt" in capsys.readouterr().err and Path("out/notes.txt").exists()
