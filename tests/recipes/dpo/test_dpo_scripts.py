"""The scripts that users know, on 2 CPU processes."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from dpo_runs import rows_of, validations_of

import samestep
from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir
from system.requirements import require

pytestmark = pytest.mark.timeout(900)
SCRIPTS = Path(__file__).parents[3] / "scripts" / "dpo"
PYTHON_SCRIPT, LOCAL, AURORA = (
    SCRIPTS / name for name in ("run_dpo_ddp.py", "run_dpo_ddp_local.sh", "run_dpo_ddp_aurora.sh")
)
SITE = Path(samestep.__file__).parent / "conf" / "site" / "aurora.yaml"
SHORT = ["--preset=tiny", "--max_steps=2", "--no-log.tensorboard", "--log.every=1", "name=a"]
SHORT_FILES = {"best_model.pt", "latest_model.pt"}


def call(
    command: Sequence[str | Path], folder: Path, python: str = sys.executable, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHON": python, "OMP_NUM_THREADS": "1", **(more or {})}
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=100)


def check_short_run(run: Path) -> None:
    assert read_json(run / "status.json")["status"] == "done"
    assert {path.name for path in run.glob("*.pt")} == SHORT_FILES
    assert [row["step"] for row in rows_of(run)] == [1, 2]
    assert read_json(run / "config.json")["global_batch"] == 16


@pytest.mark.long
def test_the_local_script_trains_on_2_processes_in_the_folder_it_is_called_from(tmp_path: Path) -> None:
    found = call([LOCAL, "2", *SHORT], tmp_path)
    assert found.returncode == 0, found.stderr
    assert "0 (2 processes on the CPU)" in found.stdout
    check_short_run(tmp_path / "runs" / "a")


def test_torchrun_trains_with_familiar_flags(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", PYTHON_SCRIPT]
    flags = ["--output_dir=out", "--num_epochs=1", "--batch_size=4", "--lr=1e-3", "--beta=0.2", "--temperature=1.5"]
    more = [
        "--weight_decay=0.01",
        "--max_length=100",
        "--backend=gloo",
        "--no_cuda",
        "--diversity_lambda=0.1",
        "reference=live",
    ]
    found = call([*torchrun, *SHORT, *flags, *more, "reference=live"], tmp_path)
    assert found.returncode == 0, found.stderr
    config = read_json(tmp_path / "out" / "a" / "config.json")["config"]
    assert (config["objective"]["beta"], config["objective"]["diversity_lambda"]) == (0.2, 0.1)
    assert (config["learning_rate"], config["weight_decay"], config["temperature"]) == (1e-3, 0.01, 1.5)
    assert (config["epochs"], config["batch_size"], config["data"]["max_length"]) == (1, 4, 100)
    assert (config["distributed"]["backend"], config["distributed"]["device"]) == ("gloo", "cpu")


@pytest.mark.parametrize("number", ["1", "12", "auto"])
def test_the_number_of_processes_and_further_flags_last(number: str, tmp_path: Path) -> None:
    found = call([LOCAL, number, "--train_data", "my pairs.json"], tmp_path, python="echo")
    assert found.stdout.split(" ", 1)[1].strip() == f"--nproc {number} --train_data my pairs.json"


@pytest.mark.parametrize("args", [[], ["0"], ["two"], ["--help"], ["--nproc", "2"]])
def test_a_wrong_number_is_answered_with_the_usage(args: list[str], tmp_path: Path) -> None:
    found = call([LOCAL, *args], tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("usage: run_dpo_ddp_local.sh N|auto [further flags")
    assert not os.listdir(tmp_path)


def test_the_python_script_explains_itself(tmp_path: Path) -> None:
    found = call([sys.executable, PYTHON_SCRIPT, "--help"], tmp_path)
    assert found.returncode == 0
    assert "--diversity_lambda" in found.stdout


def test_the_python_script_takes_the_published_network_by_default(tmp_path: Path) -> None:
    found = call([sys.executable, PYTHON_SCRIPT, "--base_model_dir", "here", "--no_cuda"], tmp_path)
    assert found.returncode == 2
    assert "there is no v_48_020 in here" in found.stderr


def node_file(folder: Path, nodes: Sequence[str]) -> dict[str, str]:
    """What PBS gives a job; each node is named once for each of its chunks."""
    (folder / "nodes").write_text("".join(f"{node}\n" for node in nodes))
    return {"PBS_NODEFILE": str(folder / "nodes"), "PBS_O_WORKDIR": str(folder), "DRY_RUN": "1"}


def test_the_aurora_script_starts_a_rank_for_each_tile(tmp_path: Path) -> None:
    env = {**node_file(tmp_path, ["x1", "x1", "x2"]), "FLAGS": "--beta 0.2  name=b", "MAX_TIME": "5h"}
    found = call([AURORA, "--train_data", "my pairs.json"], Path("/"), python="python3", more=env)
    assert found.returncode == 0, found.stderr
    cores = yaml.safe_load(SITE.read_text())["layouts"]["12"]["cpu_bind"]
    assert shlex.split(found.stdout) == [
        *("mpiexec", "-n", "24", "--ppn", "12", "--hostfile", str(tmp_path / "nodes"), "--cpu-bind", cores),
        *("python3", "-P", "-u", "-m", "samestep", "train", "dpo", "--preset", "proteinmpnn", "--max_time", "5h"),
        *("--beta", "0.2", "name=b", "--train_data", "my pairs.json"),
    ]
    assert os.listdir(tmp_path) == ["nodes"], "nothing was started"


def test_the_aurora_script_refuses_other_numbers_of_ranks(tmp_path: Path) -> None:
    found = call([AURORA], Path("/"), more={**node_file(tmp_path, ["x1"]), "RANKS_PER_NODE": "4"})
    assert found.returncode == 2
    assert "RANKS_PER_NODE must be 12 (a tile each) or 6 (a whole GPU each), not 4" in found.stderr


@pytest.mark.parametrize("per_node", ["12", "6"])
def test_the_aurora_script_sets_what_the_site_file_sets(tmp_path: Path, per_node: str) -> None:
    """A program in place of mpiexec prints its environment."""
    printer = tmp_path / "printer"
    printer.write_text('#!/bin/sh\nenv\necho words="$*"\n')
    printer.chmod(0o755)
    env = {**node_file(tmp_path, ["x1"]), "DRY_RUN": "", "MPIEXEC": str(printer), "OMP_NUM_THREADS": ""}
    env["RANKS_PER_NODE"] = per_node
    found = dict(line.partition("=")[::2] for line in call([AURORA], tmp_path, more=env).stdout.splitlines())
    site = yaml.safe_load(SITE.read_text())
    layout = site["layouts"][per_node]
    wanted = {**site["env"], **layout["env"]}
    assert f"-n {per_node} --ppn {per_node}" in found["words"] and layout["cpu_bind"] in found["words"]
    assert len(wanted) > 5
    assert {name: found.get(name) for name in wanted} == wanted
    assert found["MASTER_ADDR"].endswith(".hsn.cm.aurora.alcf.anl.gov")


def test_the_directives_of_the_aurora_script() -> None:
    text = AURORA.read_text()
    directives = re.findall(r"^#PBS (.*)$", text, re.MULTILINE)
    assert {"-l select=1", "-l walltime=01:00:00", "-l filesystems=home:flare", "-q debug", "-k doe"} <= set(directives)
    assert any(line.startswith("-A ") for line in directives)
    assert text.index("#PBS") < text.index("set -e"), "PBS reads no directive after the first command"


@pytest.mark.long
def test_the_aurora_script_trains_under_mpiexec_without_pbs(tmp_path: Path) -> None:
    require("mpiexec", ["mpiexec.mpich"])
    env = {"MPIEXEC": "mpiexec.mpich", "RANKS_PER_NODE": "2", "FLAGS": " ".join(SHORT)}
    found = call([AURORA, "--no_cuda"], tmp_path, more=env)
    assert found.returncode == 0, found.stderr
    run = tmp_path / "runs" / "a"
    check_short_run(run)
    launches = [event for event in JsonLines(RunDir(run).events) if event["kind"] == "launch"]
    assert [event["world"] for event in launches] == [2], "not two runs of one rank each"
    assert validations_of(run)
