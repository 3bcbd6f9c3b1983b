"""The project of dpo: every command that its users know works as typed."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from dpo_runs import rows_of, validations_of

import samestep
from projects import make_project, project_for_settings, really, typed
from samestep.core.errors import EXIT_USER
from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir
from system.requirements import require

pytestmark = pytest.mark.timeout(900)
SITE = Path(samestep.__file__).parent / "conf" / "site" / "aurora.yaml"
LOCAL, AURORA = "./scripts/run_dpo_ddp_local.sh", "scripts/run_dpo_ddp_aurora.sh"
SHORT = "--preset=tiny --data.limit=20 --max_steps=2 --no-log.tensorboard --log.every=1 --no_cuda name=a"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = project_for_settings("dpo", tmp_path / "my-dpo", monkeypatch)
    for name in ("PBS_NODEFILE", "PBS_ENVIRONMENT", "PBS_O_WORKDIR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    return folder


def test_defaults(project: Path) -> None:
    config: Any = typed("torchrun --nproc_per_node=4 -m dpo_inv.run_dpo_ddp", project).config()
    assert (config.data.train, config.data.validation) == ("data/input/test_data_real.json", None)
    assert (config.batch_size, config.global_batch_size, config.accumulation) == (1, None, 1)
    assert (config.epochs, config.max_steps, config.learning_rate) == (10, None, 3e-7)
    assert (config.schedule, config.lr_scaling, config.weight_decay) == ("constant", "none", 0.0)
    assert (config.model.name, config.model.dir, config.family) == ("v_48_020", None, "protein")
    assert (config.objective.beta, config.temperature, config.data.max_length) == (0.1, 1.0, 2048)
    assert (config.out, config.num_workers, config.distributed.backend) == ("outputs/dpo_ddp", 0, "auto")


@pytest.mark.parametrize(
    ("command", "launched", "changed"),
    [
        (
            "torchrun --nproc_per_node=4 -m dpo_inv.run_dpo_ddp --train_data data/input/test_data_real.json "
            "--output_dir outputs/dpo_ddp --batch_size 1 --num_epochs 10",
            ("torchrun", ["--nproc_per_node=4"]),
            {"out": "outputs/dpo_ddp", "batch_size": 1, "epochs": 10, "data.train": "data/input/test_data_real.json"},
        ),
        (
            "mpiexec -n 12 -ppn 6 python -m dpo_inv.run_dpo_ddp --train_data data.json --output_dir outputs/ "
            "--backend ccl",
            ("mpiexec", ["-n", "12", "-ppn", "6"]),
            {"out": "outputs/", "data.train": "data.json", "distributed.backend": "ccl", "learning_rate": 3e-7},
        ),
        (f"{LOCAL} 4", ("torchrun", ["--nproc_per_node=4"]), {"batch_size": 1}),
        (f"MASTER_PORT=29501 {LOCAL} 4", ("torchrun", ["--nproc_per_node=4", "--master_port=29501"]), {}),
        (f"{LOCAL} auto --num_epochs 3", ("torchrun", ["--nproc_per_node=auto"]), {"epochs": 3}),
        (
            "cd scripts && ./run_dpo_ddp_local.sh 2 --lr 1e-6",
            ("torchrun", ["--nproc_per_node=2"]),
            {"learning_rate": 1e-6},
        ),
        (
            "python -m dpo_inv.run_dpo_ddp --learning_rate 1e-6 --val_data held.json --beta 0.2 --no_cuda",
            None,
            {"learning_rate": 1e-6, "data.validation": "held.json", "objective.beta": 0.2, "distributed.device": "cpu"},
        ),
    ],
)
def test_commands_as_typed(
    project: Path, command: str, launched: tuple[str, list[str]] | None, changed: dict[str, Any]
) -> None:
    found = typed(command, project)
    assert found.done.returncode == 0, found.done.stderr
    assert found.launchers == ([launched] if launched else [])
    config = found.config()
    for name, value in changed.items():
        part: Any = config
        for field in name.split("."):
            part = getattr(part, field)
        assert part == value, name


@pytest.mark.parametrize("backend", ["auto", "nccl", "gloo", "ccl", "xpu"])
def test_backends(project: Path, backend: str) -> None:
    config: Any = typed(f"python -m dpo_inv.run_dpo_ddp --backend {backend}", project).config()
    assert config.distributed.backend == backend


def test_the_first_line_says_what_differs(project: Path) -> None:
    lines = typed("python -m dpo_inv.run_dpo_ddp", project).done.stdout.splitlines()
    assert len(lines) == 1 and "README.md says what else differs" in lines[0]
    other = "PALS_RANKID=1 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=2 PMI_SIZE=2 python -m dpo_inv.run_dpo_ddp"
    assert typed(other, project).done.stdout == ""


@pytest.mark.parametrize("args", ["", "0", "two", "--help", "--nproc 2"])
def test_a_wrong_number_is_answered_with_the_usage(project: Path, args: str) -> None:
    found = typed(f"{LOCAL} {args}", project)
    assert (found.done.returncode, found.done.stdout, found.samestep) == (EXIT_USER, "", [])
    assert found.done.stderr.startswith("usage: run_dpo_ddp_local.sh N|auto [further flags")


def test_records_of_the_project(project: Path) -> None:
    file = project / "data" / "input" / "test_data_real.json"
    records = json.loads(file.read_text())
    assert len(records) == 414
    assert all((file.parent / record["pdb_file"]).is_file() for record in records)


def test_the_header_of_the_aurora_script(project: Path) -> None:
    found = typed(f"qsub {AURORA}", project)
    assert found.launchers == [("qsub", [AURORA])]
    text = (project / AURORA).read_text()
    directives = set(re.findall(r"^#PBS (.*)$", text, re.MULTILINE))
    assert {"-l select=2:system=aurora", "-l place=scatter", "-l walltime=01:00:00", "-k doe"} <= directives
    assert {"-q debug", "-l filesystems=home:flare"} <= directives
    assert any(line.startswith("-A ") for line in directives)
    assert text.index("#PBS") < text.index("set -e"), "PBS reads no directive after the first command"


def job(project: Path, nodes: Sequence[str]) -> dict[str, str]:
    """What PBS gives a job; each node is named once for each of its chunks."""
    (project.parent / "nodes").write_text("".join(f"{node}\n" for node in nodes))
    return {"PBS_NODEFILE": str(project.parent / "nodes"), "PBS_O_WORKDIR": str(project)}


def test_the_aurora_script_starts_a_rank_for_each_tile(project: Path) -> None:
    """As PBS runs it: a copy in a folder of its own."""
    spool = project.parent / "spool"
    spool.write_text((project / AURORA).read_text())
    env = {**job(project, ["x1", "x1", "x2"]), "DRY_RUN": "1", "FLAGS": "--beta 0.2  name=b", "MAX_TIME": "5h"}
    before = sorted(project.rglob("*"))
    found = typed(f"cd / && bash {spool} --train_data 'my pairs.json'", project, env)
    assert found.done.returncode == 0, found.done.stderr
    cores = yaml.safe_load(SITE.read_text())["layouts"]["12"]["cpu_bind"]
    assert shlex.split(found.done.stdout) == [
        *("mpiexec", "-n", "24", "--ppn", "12", "--hostfile", env["PBS_NODEFILE"], "--cpu-bind", cores),
        *("python", "-u", "-m", "dpo_inv.run_dpo_ddp", "--max_time", "5h"),
        *("--beta", "0.2", "name=b", "--train_data", "my pairs.json"),
    ]
    assert sorted(project.rglob("*")) == before, "nothing was started"


def test_a_job_of_pbs_writes_its_log_and_trains(project: Path) -> None:
    env = {**job(project, ["x1", "x2"]), "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBID": "77.aurora-pbs"}
    found = typed(f"cd / && bash {project / AURORA}", project, {**env, "MASTER_PORT": "29501"})
    (launcher,) = found.launchers
    assert launcher[0] == "mpiexec" and launcher[1][:4] == ["-n", "24", "--ppn", "12"]
    config: Any = found.config()
    assert (config.learning_rate, config.max_time) == (3e-7, "55m")
    (log,) = (project / "logs").glob("dpo_ddp_*.out")
    assert (log.name, found.done.stdout) == ("dpo_ddp_77.out", "")
    assert "README.md says what else differs" in log.read_text()


def test_the_aurora_script_outside_of_the_project(project: Path) -> None:
    found = typed(f"cd scripts && ./{Path(AURORA).name}", project)
    assert (found.done.returncode, found.launchers) == (EXIT_USER, [])
    assert "call it in the project's folder" in found.done.stderr


def test_the_aurora_script_refuses_other_numbers_of_ranks(project: Path) -> None:
    found = typed(f"./{AURORA}", project, {**job(project, ["x1"]), "RANKS_PER_NODE": "4"})
    assert (found.done.returncode, found.launchers) == (EXIT_USER, [])
    assert "RANKS_PER_NODE must be 12 (a tile each) or 6 (a whole GPU each), not 4" in found.done.stderr


@pytest.mark.parametrize("per_node", ["12", "6"])
def test_the_aurora_script_sets_what_the_site_file_sets(project: Path, per_node: str) -> None:
    """A program in place of mpiexec prints its environment."""
    printer = project.parent / "printer"
    printer.write_text('#!/bin/sh\nenv\necho words="$*"\n')
    printer.chmod(0o755)
    env = {**job(project, ["x1"]), "MPIEXEC": str(printer), "OMP_NUM_THREADS": "", "MASTER_PORT": "29501"}
    env["RANKS_PER_NODE"] = per_node
    done = typed(f"./{AURORA}", project, env).done
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    site = yaml.safe_load(SITE.read_text())
    layout = site["layouts"][per_node]
    wanted = {**site["env"], **layout["env"]}
    assert f"-n {per_node} --ppn {per_node}" in found["words"] and layout["cpu_bind"] in found["words"]
    assert len(wanted) > 5
    assert {name: found.get(name) for name in wanted} == wanted
    assert found["MASTER_ADDR"].endswith(".hsn.cm.aurora.alcf.anl.gov") and found["MASTER_PORT"] == "29501"


def test_it_trains_and_writes_the_files_that_people_look_for(tmp_path: Path) -> None:
    """A small network on some of the pairs."""
    project = make_project("dpo", tmp_path / "my-dpo")
    flags = "--train_data data/input/test_data_real.json --output_dir outputs/dpo_ddp --batch_size 4 --num_epochs 1"
    more = "--lr=1e-3 --beta=0.2 --temperature=1.5 --weight_decay=0.01 --max_length=100 --backend=gloo"
    short = "--preset=tiny --data.limit=20 --no-log.tensorboard --log.every=1 --no_cuda name=a"
    done = really(f"torchrun --nproc_per_node=2 -m dpo_inv.run_dpo_ddp {flags} {more} {short}", project)
    assert "0 (2 processes on the CPU)" in done.stdout and "average loss" in done.stdout
    assert "epoch 1  train loss" in done.stdout and "val/loss" in done.stdout
    run = project / "outputs" / "dpo_ddp" / "a"
    assert read_json(run / "status.json")["status"] == "done"
    assert {path.name for path in run.glob("*.pt")} == {"best_model.pt", "latest_model.pt", "checkpoint_epoch_1.pt"}
    record = read_json(run / "config.json")
    assert record["global_batch"] == 2 * 4 and record["config"]["temperature"] == 1.5
    assert [row["step"] for row in rows_of(run)] == [1, 2]


@pytest.mark.long
def test_the_published_network_splits_414_records_as_ever(tmp_path: Path) -> None:
    project = make_project("dpo", tmp_path / "my-dpo")
    done = really(f"{LOCAL} 2 --max_steps 2 --no_cuda --name a", project)
    assert "372 pairs for training, 42 pairs for validation" in done.stdout
    assert read_json(project / "outputs" / "dpo_ddp" / "a" / "status.json")["status"] == "done"


@pytest.mark.long
def test_the_aurora_script_trains_under_mpiexec_without_pbs(tmp_path: Path) -> None:
    require("mpiexec", ["mpiexec.mpich"])
    project = make_project("dpo", tmp_path / "my-dpo")
    really(f"MPIEXEC=mpiexec.mpich RANKS_PER_NODE=2 FLAGS='{SHORT}' ./{AURORA}", project)
    run = project / "outputs" / "dpo_ddp" / "a"
    assert {path.name for path in run.glob("*.pt")} == {"best_model.pt", "latest_model.pt"}
    launches = [event for event in JsonLines(RunDir(run).events) if event["kind"] == "launch"]
    assert [event["world"] for event in launches] == [2], "not two runs of one rank each"
    assert validations_of(run)
