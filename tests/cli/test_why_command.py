"""`samestep why`: what the user sees, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from samestep.cli.main import VERBS, main
from samestep.core.json_files import write_json
from samestep.why.records import VERDICTS


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")  # no scheduler is found


@pytest.fixture
def run() -> Path:
    path = Path("runs/a")
    write_json(path / "config.json", {"recipe": "toy", "config": {"batch_size": 4}})
    write_json(path / "status.json", {"status": "waiting", "after": "dump"})
    return path


def test_a_run_by_its_name(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "a"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "runs/a: waiting"
    assert shown[-1].strip() == "samestep train --resume runs/a until=null"
    assert "  status.json  waiting, after dump" in shown


def test_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "--json", "runs/a"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "waiting"
    assert {"run", "sentence", "ranks", "host", "reason", "stage", "step", "traceback", "evidence", "next"} <= set(
        found
    )
    assert {"file": "status.json", "text": "waiting, after dump"} in found["evidence"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["b"], "'b' is not a run directory; runs in runs/: a"),
        (["A"], "'A' is not a run directory (did you mean 'a'?); runs in runs/: a"),
        (["a", "b"], "one run is expected, not 2; the command is: samestep why RUN [--json]"),
        (["a", "--all"], "there is no option --all"),
    ],
)
def test_bad_arguments(run: Path, args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", *args]) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_is_only_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    noted = {"job": "17", "scheduler": "slurm", "script": "runs/b/job/train.sh", "output": "runs/b/job/17.out"}
    write_json(Path("runs/b/job/job.json"), {"jobs": [noted]})
    assert main(["why", "b"]) == 0
    shown = capsys.readouterr().out
    assert "job 17 was submitted, and no rank has begun to train" in shown
    assert "squeue --job 17" in shown


def test_help_names_every_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verdict} " in shown for verdict in VERDICTS)
    assert {"why", "doctor"} <= set(VERBS)


def test_the_answer_does_not_wait_for_torch(run: Path) -> None:
    code = "import sys; from samestep.cli.main import main; main(['why', 'a']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
