"""Help wherever it is asked for, and where the way of a command was lost."""

import subprocess
import sys

import pytest

from samestep.cli.main import VERBS, main


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize(
    "words",
    [
        *([verb] for verb in VERBS),
        *([verb, "mdlm"] for verb in ("train", "submit", "verify", "config", "new")),
        *([verb, "nowhere"] for verb in ("sample", "evaluate", "export", "checkpoints", "why")),
        ["data", "prepare"],
        ["train", "mdlm", "--preset", "tiny", "learning_rate=1"],
        ["train", "--resume", "nowhere"],
        ["doctor", "--test"],
    ],
    ids=" ".join,
)
def test_every_verb_explains_itself(words: list[str], flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, flag]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"samestep {words[0]}")
    assert shown.err == ""


def test_help_as_a_word_before_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "why"]) == main(["why", "--help"]) == 0
    first, second = capsys.readouterr().out.split("samestep why RUN [--json]")[1:]
    assert first == second


def test_no_arguments_get_a_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    short = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert len(short.splitlines()) < 8 < len(capsys.readouterr().out.splitlines())
    assert all(verb in short for verb in VERBS)


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag]) == 0
    assert capsys.readouterr().out.strip().count(".") == 2


@pytest.mark.parametrize("words", ["--help", "", "recipes", "train --help", "--version", "why nowhere"])
@pytest.mark.parametrize("env", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
def test_a_reader_that_leaves_is_no_error(words: str, env: dict[str, str]) -> None:
    """As with `samestep --help | head -1`, here without a first line even."""
    command = f"{sys.executable} -m samestep {words} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == (2 if words == "why nowhere" else 0)
    assert "Broken" not in done.stderr and "Traceback" not in done.stderr
