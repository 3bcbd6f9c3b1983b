"""The script of a lens project that submits with a config file, on a real SLURM cluster: dump and training are jobs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from projects import make_project
from samestep.core.json_files import read_json
from samestep.core.rundir import RunDir
from system.cluster import Cluster
from system.cluster_runs import ENDED, ClusterRuns
from system.requirements import MODULES

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def runs(cluster: Cluster, tmp_path: Path) -> Iterator[ClusterRuns]:
    with ClusterRuns(cluster, tmp_path).open() as runs:
        yield runs


def test_dump_and_training_are_jobs_of_one_run(runs: ClusterRuns, tmp_path: Path) -> None:
    project = make_project("lens", tmp_path / "my-lens")
    submit = project / "scripts" / "submit_with_config.sh"
    options = [f"config={project / 'settings.yaml'}", "num_gpus=1", "num_gpus_train=2", "nodelist=node1"]
    settings = ["preset=verify", "distributed=cpu", "name=chain", "--quiet"]
    env = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": MODULES}
    found = subprocess.run([submit, *options, *settings], env=env, capture_output=True, text=True, timeout=200)
    assert found.returncode == 0, found.stderr
    prepared, trained = (line.split()[1].rstrip(":") for line in found.stdout.splitlines() if line.startswith("job "))
    runs.await_state(trained, *ENDED)
    assert [runs.cluster.state(job) for job in (prepared, trained)] == ["COMPLETED"] * 2, runs.printed("chain")
    assert runs.cluster.field(prepared, "EndTime") <= runs.cluster.field(trained, "StartTime")
    assert [runs.cluster.field(job, "NodeList") for job in (prepared, trained)] == ["node1"] * 2
    assert [event["world"] for event in runs.events("chain", "launch")] == [1, 2]
    assert runs.status("chain") == "done"
    frozen = read_json(RunDir(runs.path("chain")).first_launch)
    assert set(frozen) >= {"pretokenize", "pretrain", "dump", "train"}
    submitted = read_json(RunDir(runs.path("chain")).job / "job.json")["jobs"]
    assert [job["stages"] for job in submitted] == [["pretokenize", "pretrain", "dump"], ["train", "eval"]]
