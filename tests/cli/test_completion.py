"""Completion, by the shells themselves; zsh and fish where they are installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from samestep.cli import completion
from samestep.cli.main import VERBS, main
from samestep.train.api.recipe_registry import find_recipe, known_recipes

KNOWN = completion.known_names()
LINES = [
    ("", set(VERBS) | {"eval"}),
    ("tr", {"train"}),
    ("train m", {"mdlm"}),
    ("train mdlm --learning", {"--learning_rate"}),
    ("train mdlm --data.pa", {"--data.path"}),
    ("train gan --preset te", {"test"}),
    ("train --resume fi", {"first"}),
    ("export s", {"second"}),
    ("eval ", {"first", "second"}),
    ("new d", {"distill", "dpo"}),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with two runs, and the scripts."""
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    for shell in completion.SHELLS:
        (tmp_path / f"script.{shell}").write_text(completion.script(shell, KNOWN) + "\n")
    return tmp_path


def asked(command: list[str], folder: Path) -> set[str]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done
    return {line.split("\t")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize(("line", "wanted"), LINES)
def test_bash(line: str, wanted: set[str], folder: Path) -> None:
    words = " ".join(f"'{word}'" for word in ["samestep", *line.split(" ")])
    ask = "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _samestep; printf '%s\\n' \"${COMPREPLY[@]}\""
    command = f"source script.bash; COMP_WORDS=({words}); {ask}"
    assert asked(["bash", "--norc", "-c", command], folder) == wanted


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(("line", "wanted"), [each for each in LINES if "eval" not in each[1]])
def test_fish(line: str, wanted: set[str], folder: Path) -> None:
    found = asked(["fish", "--no-config", "-c", f"source script.fish; complete -C 'samestep {line}'"], folder)
    assert wanted <= found
    if line.startswith("train mdlm"):
        assert found == wanted


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_it(folder: Path) -> None:
    command = "autoload -U compinit && compinit -u -d dump; source script.zsh; print -r -- ${_comps[samestep]}"
    assert "_bash_complete" in " ".join(asked(["zsh", "-f", "-c", command], folder))


def test_every_setting_of_every_recipe_is_known() -> None:
    assert set(KNOWN) == set(known_recipes())
    assert {"learning_rate", "data.path", "data_dir", "log_level"} <= set(KNOWN["mdlm"].settings)
    assert list(KNOWN["gan"].presets) == sorted(find_recipe("gan").presets)


def test_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert "complete -o default -F _samestep samestep" in capsys.readouterr().out
    assert main(["completion", "tcsh"]) == 2
    assert "samestep completion bash|zsh|fish" in capsys.readouterr().err
