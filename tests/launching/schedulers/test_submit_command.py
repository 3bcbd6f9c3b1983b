"""`samestep submit` as it is typed: what it prints, what it writes into the run directory, what it refuses."""

import json
import re
import shlex
from pathlib import Path

import pytest

from samestep.cli.args import SubmitArgs, parse_train
from samestep.cli.main import main
from samestep.core.errors import UserError
from samestep.core.json_files import read_json
from samestep.core.rundir import RunDir

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "sine.py")
SLURM = ("submit", EXAMPLE, "--on", "slurm")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to type in, with a scheduler that takes every job."""
    (tmp_path / "bin").mkdir()
    for name, answer in (("sbatch", "4711;cluster"), ("qsub", "12.server")):
        stub = tmp_path / "bin" / name
        version = '[ "$1" = --version ] && echo "pbs_version = 23.06.06" && exit'
        stub.write_text(f'#!/bin/sh\n{version}\necho "{name} $@" >> called\necho "{answer}"\n')
        stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("SAMESTEP_SITE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(args) == 0
    return capsys.readouterr().out


def trained(script: str) -> list[str]:
    """The arguments of `samestep train` in a script."""
    line = next(line for line in script.splitlines() if " -m samestep train " in line)
    return shlex.split(line.split(" -m samestep train ")[1])


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(args) == 2
    return capsys.readouterr().err


def test_submitting(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = printed(capsys, *SLURM, "--nodes=2", "--gpus-per-node", "4", "--epochs", "3")
    run = folder / "runs" / "sine-default-1"
    batch = "batch   64 rows a step, 8 on each of 8 ranks, stage fit"
    assert f"run     {run}\n{batch}\njob     4711: 2 x 4 ranks\nfollow  tail -F {run}/job/4711.out\n" in output
    assert "cancel  scancel 4711" in output
    assert (folder / "called").read_text() == f"sbatch --parsable {run}/job/train.sh\n"
    noted = read_json(RunDir(run).job / "job.json")["jobs"]
    assert [(job["job"], job["scheduler"]) for job in noted] == [("4711", "slurm")]
    assert trained((run / "job" / "train.sh").read_text()) == [
        EXAMPLE,
        "--epochs",
        "3",
        "name=sine-default-1",
        f"out={folder}/runs",
    ]


def test_the_next_run_has_another_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, *SLURM)
    printed(capsys, *SLURM)
    assert sorted(path.name for path in (folder / "runs").iterdir()) == ["sine-default-1", "sine-default-2"]


def test_a_dry_run_prints_the_very_script_and_does_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = (*SLURM, "--nodes=2", "name=mine", "--time=2h", "--account", "me", "--directive=--mail-type=END")
    dry = printed(capsys, *args, "--dry-run")
    assert not (folder / "runs").exists()
    assert not (folder / "called").exists()
    printed(capsys, *args)
    assert (folder / "runs" / "mine" / "job" / "train.sh").read_text() == dry


@pytest.mark.parametrize(
    ("asked", "ranks", "devices", "width"),
    [
        ([], 12, "FLAT", 8),
        (["--gpus-per-node=12"], 12, "FLAT", 8),
        (["--gpus-per-node=6"], 6, "COMPOSITE", 16),
        (["--num-gpus=12", "--nodes=2"], 6, "COMPOSITE", 16),
    ],
)
@pytest.mark.usefixtures("folder")
def test_the_ranks_of_aurora_have_tiles_or_whole_gpus(
    asked: list[str], ranks: int, devices: str, width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    script = printed(capsys, "submit", EXAMPLE, "--site", "aurora", *asked, "--time=2h", "--dry-run")
    assert f" -ppn {ranks} --cpu-bind list:" in script
    assert f"export ZE_FLAT_DEVICE_HIERARCHY={devices}\n" in script
    assert f"export OMP_NUM_THREADS={width}\n" in script
    found = re.findall(r"(\d+)-(\d+)", script.split("--cpu-bind list:")[1].split(")")[0])
    cores = [range(int(first), int(last) + 1) for first, last in found]
    assert [len(own) for own in cores] == [width] * ranks and len({core for own in cores for core in own}) == 96
    half = ranks // 2
    assert all(0 < core < 52 for own in cores[:half] for core in own), "the socket of the first GPUs, without core 0"
    assert all(52 < core < 104 for own in cores[half:] for core in own), "that of the others, without core 52"


@pytest.mark.usefixtures("folder")
def test_other_numbers_of_ranks_have_no_devices_on_aurora(capsys: pytest.CaptureFixture[str]) -> None:
    for asked in (["--gpus-per-node=4"], ["--num-gpus=18"], ["--num-gpus=1"]):
        output = refused(capsys, "submit", EXAMPLE, "--site", "aurora", *asked, "--time=2h")
        assert "12 (a tile each) or 6 (a whole GPU each) with --gpus-per-node" in output
    own = ("--env", "ZE_FLAT_DEVICE_HIERARCHY=COMBINED", "--cpu-bind=depth")
    script = printed(capsys, "submit", EXAMPLE, "--site", "aurora", *own, "--time=2h", "--dry-run")
    assert "export ZE_FLAT_DEVICE_HIERARCHY=COMBINED\n" in script and "--cpu-bind depth)" in script
    cpus = printed(capsys, "submit", EXAMPLE, "--site=aurora", "--gpus-per-node=0", "--tasks-per-node=4", "--dry-run")
    assert "ZE_FLAT" not in cpus and "--cpu-bind" not in cpus, "ranks on CPUs have no device"


def test_under_pbs_the_run_stops_itself(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = printed(capsys, "submit", EXAMPLE, "--site", "aurora", "--nodes=2", "--time", "2h", "--queue=prod")
    assert "qdel 12.server" in output
    script = (folder / "runs" / "sine-default-1" / "job" / "train.sh").read_text()
    assert " mpiexec=(mpiexec -n 24 -ppn 12 " in script
    assert "#PBS -l select=2\n" in script
    assert "#PBS -l walltime=02:00:00\n" in script
    assert "#PBS -q prod\n" in script
    assert "#PBS -k doe\n" in script
    assert 'export MASTER_ADDR="$(hostname -s).hsn.cm.aurora.alcf.anl.gov"\n' in script


def test_without_a_scheduler_it_trains_here(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    output = printed(capsys, "submit", EXAMPLE, "--on=local", "--tasks-per-node=2", "name=here", "--dry-run")
    assert shlex.split(output) == ["samestep", "train", "--nproc", "2", EXAMPLE, "name=here", f"out={folder}/runs"]
    output = refused(capsys, "submit", EXAMPLE, "--on=local", "--nodes=2", "--tasks-per-node=1")
    assert "--on local is this machine alone" in output


def test_stages_with_gpus_of_their_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("submit", "system.two_stages", "--on=slurm", "--num-gpus", "2", "--num_gpus_train=16", "name=both")
    output = printed(capsys, *args)
    job = folder / "runs" / "both" / "job"
    assert output.count("job     4711") == 2
    calls = (folder / "called").read_text().splitlines()
    assert calls[1].startswith("sbatch --parsable --dependency=afterok:4711 --kill-on-invalid-dep=yes ")
    first, second = (job / "1_dump.sh").read_text(), (job / "2_train.sh").read_text()
    assert trained(first)[-1] == "until=dump"
    assert "--ntasks-per-node=2\n" in first
    assert "--nodes=2\n#SBATCH --ntasks-per-node=8\n" in second
    assert trained(second)[-1] == trained(first)[-2] == "global_batch_size=64"
    assert "this recipe has dump, train" in refused(capsys, *args, "--num-gpus-tune=1")


THREE = """
from samestep import TRAINING_SETTINGS, Recipe, Stage
from system.two_stages import Dump, TwoStages, build

dump, test = (Stage(name, Dump, ignores=TRAINING_SETTINGS) for name in ("dump", "test"))
stages = [dump, Stage("warm", build, gpus_of="train"), Stage("train", build), test]
recipe = Recipe(TwoStages, lambda config: stages)
"""


def test_the_batch_follows_from_the_job_that_trains(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And not from the last job, whose single rank would make a batch of four out of one for eight ranks."""
    (folder / "three.py").write_text(THREE)
    args = ("submit", "three.py", "--on=slurm", "--num-gpus=1", "--num-gpus-train=8")
    output = printed(capsys, *args, "name=a")
    assert "batch   32 rows a step, 4 on each of 8 ranks, stage train\n" in output
    job = folder / "runs" / "a" / "job"
    texts = [(job / f"{name}.sh").read_text() for name in ("1_dump", "2_warm_train", "3_test")]
    assert [text.split("--gpus-per-node=")[1].split()[0] for text in texts] == ["1", "8", "1"]
    assert all("global_batch_size=32" in trained(text) for text in texts)
    output = printed(capsys, *args, "name=b", "--num-gpus-warm=2", "accumulation=3")
    assert "batch   96 rows a step, 12 on each of 8 ranks, stage train\n" in output
    assert sorted(path.stem for path in (folder / "runs" / "b" / "job").glob("*.sh")) == [
        "1_dump",
        "2_warm",
        "3_train",
        "4_test",
    ]
    assert "batch   100 rows a step, on 8 ranks" in printed(capsys, *args, "name=c", "global_batch_size=100")


def test_config_files_are_copied_so_that_a_queued_job_does_not_change(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf, groups = folder / "conf", folder / "groups"
    for path, text in {
        conf / "mine.yaml": "defaults: [other, log: quiet, _self_]\nhydra: {searchpath: [file://groups]}\nseed: 5\n",
        conf / "other.yaml": "epochs: 7\n",
        groups / "log" / "quiet.yaml": "quiet: true\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    printed(capsys, *SLURM, "--config", "conf/mine.yaml", "name=a", "hidden=3")
    copies = folder / "runs" / "a" / "job" / "config"
    assert sorted(str(path.relative_to(copies)) for path in copies.rglob("*.yaml")) == [
        "log/quiet.yaml",
        "mine.yaml",
        "other.yaml",
    ]
    (conf / "mine.yaml").write_text("seed: 6\n")
    (conf / "other.yaml").unlink()
    (groups / "log" / "quiet.yaml").write_text("quiet: false\n")
    config = parse_train(trained((copies.parent / "train.sh").read_text()))[2]
    assert (config.seed, config.epochs, config.log.quiet, config.hidden) == (5, 7, True, 3)


def test_a_refused_submission_leaves_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stub = folder / "bin" / "sbatch"
    accepting = stub.read_text()
    stub.write_text("#!/bin/sh\necho 'invalid account' >&2; exit 1\n")
    assert "sbatch did not accept the job: invalid account" in refused(capsys, *SLURM)
    assert "invalid account" in refused(capsys, *SLURM, "name=mine", "out=deep/runs")
    assert [path.name for path in folder.iterdir()] == ["bin"]
    stub.write_text(accepting)
    printed(capsys, *SLURM)
    assert [path.name for path in (folder / "runs").iterdir()] == ["sine-default-1"], "the number is still free"


def test_a_list_of_nodes_for_one_node_is_ignored_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SLURM, "--nodelist", "gpu[1-2]", "--dry-run"]) == 0
    output = capsys.readouterr()
    assert "--nodelist gpu[1-2] is ignored" in output.err
    assert "nodelist" not in output.out
    assert main([*SLURM, "--nodelist", "gpu[1-2]", "--nodes=2", "--dry-run"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "#SBATCH --nodelist='gpu[1-2]'\n" in output.out


def test_resuming(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder / "runs" / "old"
    main(["train", EXAMPLE, "--preset=verify", "--quiet", "name=old", "distributed=cpu", "max_time=0.01s"])
    printed(capsys, "submit", "--resume", "old", "--on=slurm", "--max_time=1h")
    assert trained((run / "job" / "train.sh").read_text()) == [
        "--resume",
        str(run),
        "--recipe",
        str(EXAMPLE),
        "--max_time=1h",
    ]


def test_a_name_that_another_run_has_is_refused_before_it_waits_in_a_queue(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["train", EXAMPLE, "--preset=verify", "--quiet", "name=old", "distributed=cpu", "max_time=0.01s"])
    same = (*SLURM, "--preset=verify", "name=old", "distributed=cpu")
    output = refused(capsys, "submit", "system.two_stages", "--on=slurm", "name=old")
    assert f"{folder}/runs/old holds a different run (recipe differ); choose another name with name=..." in output
    assert "holds a different run (seed differ)" in refused(capsys, *same, "seed=7")
    assert not (folder / "called").exists()
    assert "job     4711" in printed(capsys, *same, "--max_time=1h"), "the same run goes on"
    stages = ("system.two_stages", "name=both", "distributed=cpu")
    main(["train", *stages, "--quiet", "global_batch_size=8", "until=dump"])
    chain = ("--on=slurm", "--num-gpus=1", "--num-gpus-train=2")
    assert printed(capsys, "submit", *stages, *chain).count("job     4711") == 2, "with the batch that it has"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--epochs=many",), "epochs must be"),  # what training would refuse
        (("--time=60",), "is not a time limit"),
        (("--gpus-per-node=9",), "a node of this site has 8 GPUs"),
        (("--site=frontier",), "there is no site 'frontier'; choose aurora"),
        (("--site=none.yaml",), "There is no file none.yaml"),
        (("--env", "MASTER_ADDR"), "write --env NAME=VALUE"),
        (("--num-gpus-fit=0",), "--num-gpus-fit must be a whole number of at least 1"),
        (("--on=cobalt",), "must be"),
        (("--on=pbs", "--nodelist=a[x-y]"), "'a[x-y]' is not a list of hosts; write it like node1,node2"),
        (("--on=slurm", "--project=a"), "--project is for PBS; under SLURM write --account"),
        (("--on=pbs", "--partition=a"), "--partition is for SLURM; under PBS write --queue"),
        (("--on=pbs", "--qos=a"), "--qos is for SLURM"),
        (("--on=pbs", "--constraint=a"), "--constraint is for SLURM"),
        (("--on=pbs", "--srun=--exact"), "--srun is for SLURM; under PBS write --mpiexec"),
        (("--queue=a",), "--queue is for PBS; under SLURM write --partition"),
        (("--select=ncpus=4",), "--select is for PBS"),
        (("--mpiexec=mpirun",), "--mpiexec is for PBS; under SLURM write --srun"),
        (("--on=pbs", "out=my runs"), "holds ' ', which PBS does not take in a path"),
        (("--on=pbs", "name=läuft"), "holds 'ä', which PBS does not take in a path"),
        (("--module",), "--module needs a value"),
    ],
)
def test_what_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refused(capsys, *SLURM, *args)
    assert not (folder / "called").exists()
    assert not (folder / "runs").exists()


def test_options_go_to_the_job_and_settings_to_training(folder: Path) -> None:
    (folder / "ours.yaml").write_text(json.dumps({"gpus_per_node": 4, "modules": ["a"], "env": {"X": "1"}}))
    args = ["r", "--nodes", "2", "time=3", "--module=b", "--env", "Y=2=3", "--no-requeue", "--lr", "1", "--flag"]
    asked = SubmitArgs.parse([*args, "--account", "me"], {"SAMESTEP_SITE": "ours.yaml"})
    assert asked.training == ["r", "time=3", "--lr", "1", "--flag"]
    assert (asked.job.nodes, asked.job.requeue, asked.job.time) == (2, False, None)
    assert (asked.job.site.account, asked.job.site.gpus_per_node) == ("me", 4)
    assert asked.job.site.modules == ("a", "b")
    assert asked.job.site.env == {"X": "1", "Y": "2=3"}


def test_a_site_file_with_a_wrong_name_is_refused(folder: Path) -> None:
    (folder / "ours.yaml").write_text("gpu_per_node: 4\n")
    with pytest.raises(UserError, match="gpus_per_node"):
        SubmitArgs.parse(["r", "--site", "ours.yaml"], {})


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    output = printed(capsys, "submit", "--help")
    for option in (
        "--on",
        "--nodes",
        "--gpus-per-node",
        "--account",
        "--directive",
        "--site.gpus-per-node",
        "--dry-run",
    ):
        assert f"\n{option} " in output


PAGE = Path(__file__).parents[3] / "docs" / "clusters.md"


@pytest.mark.parametrize("line", re.findall(r"samestep submit mdlm [^`#\n]*", PAGE.read_text()))
def test_commands_of_the_documentation(capsys: pytest.CaptureFixture[str], line: str) -> None:
    args = shlex.split(line)[1:]
    assert "samestep train" in printed(capsys, *args, *(() if "--dry-run" in args else ("--dry-run",)))


def test_the_site_file_of_the_documentation(folder: Path) -> None:
    (folder / "ours.yaml").write_text(PAGE.read_text().split("```yaml\n")[1].split("```")[0])
    assert SubmitArgs.parse(["r", "--site", "ours.yaml"], {}).job.site.modules == ("cuda/12.8",)
