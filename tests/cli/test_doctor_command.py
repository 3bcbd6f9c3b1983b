"""`samestep doctor`: by hand, with ranks of its own, and its messages about wrong args."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cli.conftest import Run
from samestep.cli.main import main
from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, EXIT_USER
from samestep.core.json_files import read_json

pytestmark = pytest.mark.timeout(900)
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK", "SLURM_STEP_ID")


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, without a launcher."""
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_by_hand_it_looks_at_this_machine_in_this_process(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--device=cpu", "--json=found.json"])
    output = capsys.readouterr().out
    assert max(len(line) for line in output.splitlines()) <= 100
    (machine,) = read_json(alone / "found.json")["machines"].values()
    bad = [check for check in machine["checks"] if check["result"] == "failed"]
    assert code == (EXIT_FAILURE if bad else EXIT_DONE), output  # depends on this machine
    assert {"versions", "samestep's code", "ports", "disk: rename and locks"} <= {c["name"] for c in machine["checks"]}
    assert machine["versions"]["torch"] == torch.__version__
    assert "measured" not in machine
    assert [path.name for path in alone.iterdir()] == ["found.json"], "nothing is left behind"


def test_ranks_of_its_own_print_one_table_and_a_failure_is_the_exit_code(alone: Path) -> None:
    command = [sys.executable, "-m", "samestep", "doctor", "--test", "basic", "--nproc", "2"]
    done = subprocess.run(
        [*command, "--device", "cpu"],
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (250, 250)),
    )
    assert done.returncode == EXIT_FAILURE, done.stdout + done.stderr
    assert done.stdout.count("samestep doctor --test basic on") == 1
    assert "2 ranks on 1 host, started by samestep" in done.stdout
    assert "ranks 0, 1 on" in done.stdout and "may open only 250 files" in " ".join(done.stdout.split())
    assert "logs of all ranks" not in done.stderr, "the table says it all"


def test_a_full_disk_is_found(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = alone / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        (small / "big").write_bytes(b"x" * 60_000)
        with pytest.raises(OSError, match="No space left"):
            (small / "more").write_bytes(b"x" * 60_000)
        code = main(["doctor", "--device=cpu", f"--out={small}"])
    finally:
        subprocess.run(["umount", str(small)], check=True)
    output = " ".join(capsys.readouterr().out.split())
    assert code == EXIT_FAILURE
    assert "disk space FAILED" in output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--test", "some"], "--test must be basic, ddp or all, not 'some'"),
        (["--timeout", "soon"], "--timeout must be a number of seconds"),
        (["--verbose"], "does not know '--verbose'"),
        (["--nproc", "many"], "--nproc must be auto or a whole number"),
    ],
)
def test_a_wrong_arg_is_one_sentence(
    args: list[str], message: str, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *args]) == EXIT_USER
    assert message in capsys.readouterr().err


def test_under_a_launcher_it_starts_no_ranks(shell: Run) -> None:
    codes, output = shell("doctor", "--nproc", "2")
    assert codes == [EXIT_USER]
    assert "leave out --nproc" in output


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--help"]) == EXIT_DONE
    assert "--test" in capsys.readouterr().out


@pytest.mark.gpu
def test_all_on_gpus(shell: Run, tmp_path: Path) -> None:
    count = min(2, torch.cuda.device_count())
    codes, output = shell("doctor", "--test", "all", "--device", "cuda", "--json", "found.json", ranks=count)
    (machine,) = read_json(tmp_path / "found.json")["machines"].values()
    checks = {check["name"]: check["result"] for check in machine["checks"]}
    assert set(codes) == {EXIT_DONE}, output
    assert checks["all-reduce values"] == checks["DDP gradients"] == checks["host to device"] == "ok"
    assert machine["device"] == "cuda"
    assert min(machine["measured"]["to_device_bytes_per_s"]) > 0
    assert machine["versions"]["CUDA"] and machine["versions"]["NCCL"]
