"""A file where a folder is meant, names that no file can have, files of another kind: one sentence and exit code 2."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from cli.conftest import SMALL
from samestep.cli.main import main

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "sine.py")
LONG = "n" * 300
TRAIN = ["train", EXAMPLE, *SMALL]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.txt").write_text("text")
    Path("folder").mkdir()
    Path("deep.json").write_bytes(b"[" * 100_000)
    torch.save({1: torch.zeros(2)}, "keys.pt")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["why", "file.txt"], "'file.txt' is not a run directory"),
        (["checkpoints", LONG], "is not a run directory"),
        (["why", "\udcff"], "is not text in UTF-8; write it in UTF-8, or rename the file"),
        (["why", "file.txt/below"], "is not a run directory"),
        (["sample", "keys.pt"], "keys.pt"),
        (["sample", "folder"], "'folder' is not a run directory"),
        (["export", "file.txt", "out"], "'file.txt' is not a run directory"),
        (["train", "--resume", LONG], "File name too long"),
        ([*TRAIN, "name=a\udcff"], "is not text in UTF-8"),
        ([*TRAIN, f"name={LONG}"], "File name too long"),
        ([*TRAIN, "out=file.txt"], "file.txt"),
        ([*TRAIN, "--config", "folder"], "folder"),
        ([*TRAIN, "--config", "deep.json"], "deep.json nests lists and mappings too deeply"),
        ([*TRAIN, "--init_from", "keys.pt"], "keys.pt"),
        (["data", "prepare", "file.txt", "--tokenizer", "p/" * 3000], "cannot be used (File name too long)"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_one_sentence(args: Sequence[str], expected: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, printed = main(args), capfd.readouterr()
    output = printed.out + printed.err
    assert code == 2, output
    assert "Traceback" not in output
    sentences = [line for line in output.splitlines() if line.startswith("samestep: ")]
    assert len(sentences) == 1, output
    assert expected in sentences[0]


def test_brackets_in_a_name_are_shown_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "name=a[/b]", "--max_steps", "4"]) == 0
    assert "runs/a[/b]" in capfd.readouterr().out
    for verb in ("why", "checkpoints"):
        assert main([verb, "a[/b]"]) == 0
        assert "runs/a[/b]" in capfd.readouterr().out


def test_a_file_in_place_of_the_run_directory_of_a_job(capfd: pytest.CaptureFixture[str]) -> None:
    Path("runs").mkdir()
    Path("runs/x").write_text("")
    assert main(["submit", EXAMPLE, "--on", "local", "--name", "x"]) == 2
    assert "runs/x is a file, where a run directory is meant" in capfd.readouterr().err
