"""`samestep checkpoints RUN`: what was saved, and whether it is intact, by a quick or a full check."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cli.conftest import EXAMPLE, SMALL
from samestep.checkpoint.manifest import checkpoint_folders, read_manifest, write_manifest
from samestep.checkpoint.store import Store
from samestep.cli.main import main
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.train.weights.run_checkpoints import choose_checkpoint
from samestep.world.world import World

METRICS = {10: 0.5, 20: 0.25, 30: 0.75, 40: None}


class Part:
    def state_dict(self) -> dict:
        return {"w": torch.ones(3000), "n": 1}

    def load_state_dict(self, state: dict) -> None:
        raise AssertionError("nothing is loaded")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with two stages, as training leaves it."""
    monkeypatch.chdir(tmp_path)
    path = Path("runs/a")
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"recipe": "x", "config": {}}))
    for stage, steps in (("dump", [5]), ("fit", [10, 20, 30, 40])):
        store = Store(path / "checkpoints" / stage, World.single())
        store.keep = type(store.keep)(keep_last=9)
        for step in steps:
            about = {"metric": METRICS[step], "metric_name": "val/loss", "metric_mode": "min"} if stage == "fit" else {}
            store.save(step, {"part": Part()}, about)
    return path


def fit(run: Path, step: int) -> Path:
    return run / "checkpoints" / "fit" / f"step_{step:08d}"


def rows(output: str, stage: str) -> list[list[str]]:
    """The lines of a stage's table, split at spaces."""
    lines = output.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"stage {stage}: "))
    found = []
    for line in lines[at + 1 :]:
        if not line.startswith("  "):
            break
        found.append(line.split())
    return found


def test_a_quick_check_reads_no_data(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = fit(run, 20) / "__0_0.distcp"
    data.write_bytes(bytes(data.stat().st_size))  # of the right size, though of nothing else
    assert main(["checkpoints", "a"]) == 0
    output = capsys.readouterr().out
    assert rows(output, "dump")[0] == ["step", "size", "age", "metric", "state"]
    found = rows(output, "fit")
    assert found[0] == ["step", "size", "age", "val/loss", "state"]
    assert [row[0] for row in found[1:]] == ["10", "20", "30", "40"]
    assert [row[5] for row in found[1:]] == ["0.5", "0.25", "0.75", "-"]
    assert [" ".join(row[6:]) for row in found[1:]] == [
        "not checked",
        "not checked, best",
        "not checked",
        "not checked, newest",
    ]
    size = sum(record.size for record in read_manifest(fit(run, 10)).files.values())
    assert found[1][1:3] == [f"{size / 1000:.3g}", "kB"]
    assert "samestep checkpoints runs/a --verify reads everything" in output


def test_verify_reads_everything_and_says_what_is_wrong(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(run), "--verify"]) == 0
    output = capsys.readouterr().out
    assert [" ".join(row[6:]) for row in rows(output, "fit")[1:]] == [
        "intact",
        "intact, best",
        "intact",
        "intact, newest",
    ]
    assert "--verify" not in output

    data = fit(run, 20) / "__0_0.distcp"
    data.write_bytes(bytes(data.stat().st_size))
    (fit(run, 40) / "state.json").unlink()
    assert main(["checkpoints", str(run), "--verify"]) == 1
    states = [" ".join(row[6:]) for row in rows(capsys.readouterr().out, "fit")[1:]]
    assert states == [
        "intact, best",
        "damaged: __0_0.distcp does not match its checksum",
        "intact, newest",
        "damaged: state.json is missing",
    ]


def test_what_a_quick_check_finds(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (fit(run, 10) / "manifest.json").unlink()
    with open(fit(run, 20) / "ranks.json", "a") as file:
        file.write(" ")
    write_manifest(fit(run, 30), type(m := read_manifest(fit(run, 30)))(**{**vars(m), "format": 7}))
    (run / "checkpoints" / "fit" / ".staging_step_00000050").mkdir()
    assert main(["checkpoints", "a"]) == 1
    output = capsys.readouterr().out
    states = [" ".join(row[6:]) for row in rows(output, "fit")[1:5]]
    assert states[0] == "damaged: manifest.json is missing"
    assert states[1].startswith("damaged: ranks.json has ")
    assert "has format 7 and this version of samestep reads formats up to 1" in states[2]
    assert states[3] == "not checked, newest"
    assert "the save of step 50 is in progress, or was interrupted" in output


def test_a_run_without_checkpoints(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/b").mkdir()
    Path("runs/b/config.json").write_text(json.dumps({"recipe": "x", "config": {}}))
    assert main(["checkpoints", "b"]) == 0
    assert capsys.readouterr().out == "the run runs/b has no checkpoint yet\n"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["c"], "'c' is not a run directory; runs in runs/: a"),
        (["a", "b"], "one run is expected, not 2; the command is: samestep checkpoints RUN [--verify]"),
        (["a", "--veriffy"], "there is no option --veriffy; the command is"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(
    run: Path, capsys: pytest.CaptureFixture[str], args: list[str], sentence: str
) -> None:
    assert main(["checkpoints", *args]) == 2
    assert sentence in capsys.readouterr().err


def test_no_torch_is_needed_for_the_list(run: Path) -> None:
    code = "import sys; from samestep.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    for args in (["a"], ["a", "--verify"], ["--help"]):
        ended = subprocess.run([sys.executable, "-c", code, "checkpoints", *args], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr


def test_a_real_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "samestep", "train", str(EXAMPLE), *SMALL, "--name", "a"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert main(["checkpoints", "a", "--verify"]) == 0
    found = rows(capsys.readouterr().out, "fit")
    assert found[0][3] == "val/error"
    assert (found[1][0], " ".join(found[1][6:])) == ("8", "intact, newest, best")


@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/fit"])
def test_a_file_in_place_of_a_folder_is_not_called_no_checkpoint(
    run: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "first_launch.json").write_text(json.dumps({"fit": {}}))
    shutil.rmtree(run / "checkpoints")
    (run / place).parent.mkdir(exist_ok=True)
    (run / place).write_text("")
    sentence = f"{run / place} cannot be read (Not a directory), so it is not known which checkpoints there are"
    assert main(["checkpoints", str(run)]) == 2
    assert sentence in capsys.readouterr().err
    with pytest.raises(UserError, match="cannot be read"):
        choose_checkpoint(RunDir(run))
    assert main(["why", str(run)]) == 0
    shown = capsys.readouterr().out
    assert sentence in shown and "no checkpoint yet" not in shown


def test_a_folder_that_may_not_be_read_is_not_called_empty(run: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("root may become another user; root itself may read everything")
    for folder in (run.absolute(), *run.absolute().parents[:-2]):
        folder.chmod(0o755)
    (run / "checkpoints/fit").chmod(0o700)
    child = os.fork()
    if not child:
        os.setuid(65534)
        try:
            checkpoint_folders(run / "checkpoints/fit")
            os._exit(0)
        except UserError as error:
            os._exit(2 if "cannot be read (Permission denied)" in str(error) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_other_files_beside_the_folders_of_stages_do_not_matter(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoints" / "notes.txt").write_text("mine")
    assert main(["checkpoints", str(run)]) == 0
    assert "notes" not in capsys.readouterr().out
