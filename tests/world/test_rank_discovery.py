"""Rank discovery from the environment, as each launcher sets it."""

from pathlib import Path

import pytest

from samestep.core.errors import UserError
from samestep.world.host_lists import tasks_per_node
from samestep.world.rank_discovery import RankInfo, discover

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "4",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_NTASKS": "9",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "node[07-08],other",
    "SLURM_JOB_NODELIST": "node[01-09]",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-1",
}
PALS = {"PALS_RANKID": "13", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "12", "PALS_APID": "a-b", "PMI_RANK": "13"}


def numbers(info: RankInfo) -> tuple[int, int, int, int]:
    assert info.grouped
    return info.rank, info.size, info.local_rank, info.local_size


@pytest.fixture
def node_file(tmp_path: Path) -> dict[str, str]:
    """PBS names a host once for each of its slots."""
    path = tmp_path / "nodes"
    path.write_text("x4\nx4\nx7\nx7\n")
    return {"PBS_NODEFILE": str(path), "PBS_JOBID": "33.server"}


def test_no_launcher_is_a_single_process_without_a_group() -> None:
    info = discover({})
    assert (info.rank, info.size, info.grouped) == (0, 1, False)


def test_torchrun() -> None:
    info = discover(TORCHRUN)
    assert (info.launcher, numbers(info)) == ("torchrun", (5, 8, 1, 4))


def test_one_rank_under_torchrun_still_has_a_group() -> None:
    info = discover({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    assert info.grouped


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_half_set_variables_never_become_a_single_run(missing: str) -> None:
    env = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(UserError, match=missing):
        discover(env)


@pytest.mark.parametrize("changes", [{"RANK": "8"}, {"RANK": "-1"}, {"RANK": "one"}, {"WORLD_SIZE": ""}])
def test_nonsense_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(UserError):
        discover({**TORCHRUN, **changes})


def test_srun_counts_its_own_step_and_not_the_job() -> None:
    info = discover(SRUN)
    assert (info.launcher, numbers(info)) == ("srun", (4, 5, 0, 1))
    assert (info.address, info.job) == ("node07", "slurm 17.0.0")
    assert discover({**SRUN, "SLURM_RESTART_COUNT": "1"}).job != info.job, "a requeued job uses other ports"


def test_a_step_on_one_node_needs_no_name_to_resolve() -> None:
    step = {"SLURM_STEP_NODELIST": "node3", "SLURM_STEP_TASKS_PER_NODE": "5", "SLURM_NODEID": "0", "SLURM_LOCALID": "4"}
    assert discover({**SRUN, **step}).address == "127.0.0.1"


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "4294967291"}])
def test_the_batch_script_of_a_job_is_no_rank(step: dict[str, str]) -> None:
    batch = {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", **step}
    assert not discover(batch).grouped


def test_srun_with_pmi2_is_srun() -> None:
    assert discover({**SRUN, "PMI_RANK": "4", "PMI_SIZE": "5"}).launcher == "srun"


def test_torchrun_under_srun_is_torchrun() -> None:
    assert discover({**SRUN, **TORCHRUN}).launcher == "torchrun"


def test_hydra_on_one_host() -> None:
    info = discover(HYDRA)
    assert (info.launcher, numbers(info), info.address) == ("mpiexec (MPICH)", (1, 2, 1, 2), "127.0.0.1")
    assert info.job


def test_hydra_on_several_hosts_takes_the_first_of_the_node_file(node_file: dict[str, str]) -> None:
    info = discover({**HYDRA, "PMI_SIZE": "4", **node_file})
    assert (numbers(info), info.address, info.job) == ((1, 4, 1, 2), "x4", "hydra 33.server ")
    assert discover({**HYDRA, "PMI_SIZE": "4"}).address == "", "the launcher does not say, and no one guesses"


def test_open_mpi(node_file: dict[str, str]) -> None:
    info = discover({**OPENMPI, **node_file})
    assert (info.launcher, numbers(info)) == ("mpiexec (Open MPI)", (3, 4, 1, 2))
    assert (info.address, info.job) == ("x4", "openmpi prterun-1")
    assert discover({**SRUN, **OPENMPI}).launcher == "mpiexec (Open MPI)", "it starts its own helpers by srun"


def test_pals_learns_its_size_from_pmi_or_the_node_file(node_file: dict[str, str]) -> None:
    info = discover({**PALS, "PMI_SIZE": "24", **node_file})
    assert (info.launcher, numbers(info)) == ("mpiexec (PALS)", (13, 24, 1, 12))
    assert (info.address, info.job) == ("x4", "pals a-b")
    assert numbers(discover({**PALS, **node_file})) == (13, 24, 1, 12)
    with pytest.raises(UserError, match="neither PMI_SIZE nor PBS_NODEFILE"):
        discover(PALS)


LAUNCHED = [
    (SRUN, "SLURM_PROCID"),
    (SRUN, "SLURM_LOCALID"),
    (SRUN, "SLURM_STEP_NUM_TASKS"),
    (HYDRA, "PMI_SIZE"),
    (HYDRA, "MPI_LOCALRANKID"),
    (OPENMPI, "OMPI_COMM_WORLD_LOCAL_RANK"),
    (OPENMPI, "OMPI_COMM_WORLD_SIZE"),
    ({**PALS, "PMI_SIZE": "24"}, "PALS_LOCAL_SIZE"),
]


@pytest.mark.parametrize(("env", "missing"), LAUNCHED)
def test_a_launcher_whose_ranks_cannot_be_resolved_is_refused(env: dict[str, str], missing: str) -> None:
    with pytest.raises(UserError, match=missing):
        discover({name: value for name, value in env.items() if name != missing})


def test_tasks_per_node() -> None:
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    with pytest.raises(UserError, match="tasks per node"):
        tasks_per_node("2x3")
