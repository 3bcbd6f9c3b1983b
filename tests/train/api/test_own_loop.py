"""Loops that people bring: every row counts once, and any number of real processes trains the same weights as one."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from samestep import (
    UserError,
    get_dataloader_for_distributed,
    init_distributed,
    setup_distributed_models,
    sync_metrics,
)
from system.requirements import require
from toys import run_on_ranks

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_loop.py"
WORLDS = (1, 2, 3)
SIZE, BATCH, EPOCHS = 14, 6, 2  # of the two rows of an epoch's last batch, the first of three ranks has none
OTHER_SIZE = 15  # of three rows, one of two ranks has one and the other two


def rows(size: int = SIZE) -> TensorDataset:
    random = torch.Generator().manual_seed(0)
    return TensorDataset(torch.arange(size), torch.randn(size, 4, generator=random, dtype=torch.float64))


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


class Scale(nn.Module):
    """A second network, called on what the first returns."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.randn(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def train_worker(folder: Path) -> None:
    """Two networks that begin differently on every rank; rank 0 saves what it trained, and the losses."""
    rank, world, _ = init_distributed(device="cpu", timeout=60)
    torch.manual_seed(100 + rank)
    first, second, frozen = setup_distributed_models(net(rank), Scale(), net(50 + rank).requires_grad_(False))
    loaders = [get_dataloader_for_distributed(rows(size), BATCH // world, seed=5) for size in (SIZE, OTHER_SIZE)]
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=0.05)
    losses = []
    for loader in loaders * EPOCHS:
        for _, x in loader:
            loss = (second(first(x)) - frozen(x)).square().mean()
            (loss * loader.weight).backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(sync_metrics({"loss": (loss.detach() * loader.rows, loader.rows)})["loss"])
    state = {**first.state_dict(), **second.state_dict(), "frozen": frozen[0].weight, "losses": torch.tensor(losses)}
    torch.save(state, folder / f"state-{world}-{rank}.pt")
    dist.destroy_process_group()


def test_any_number_of_processes_trains_the_weights_of_one(tmp_path: Path) -> None:
    for world in WORLDS:
        run_on_ranks(train_worker, world, tmp_path, logs=tmp_path / "logs")
    wanted = torch.load(tmp_path / "state-1-0.pt")
    assert len(wanted["losses"]) == EPOCHS * 2 * math.ceil(SIZE / BATCH)
    for name, parameter in net(0).named_parameters():
        assert (wanted[name] - parameter).abs().max() > 1e-3, f"{name} was trained"
    for world in WORLDS[1:]:
        for rank in range(world):
            found = torch.load(tmp_path / f"state-{world}-{rank}.pt")
            assert found.keys() == wanted.keys()
            for name, value in wanted.items():
                torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12, msg=f"{name} at {world} ranks")


def rows_worker(folder: Path) -> None:
    """Which rows this rank got: in two epochs by themselves, in epoch 0 again, and in order."""
    rank, world, _ = init_distributed(device="cpu", timeout=60)
    workers = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"}  # as outside of tests
    loader = get_dataloader_for_distributed(rows(), BATCH // world, seed=5, **workers)
    in_order = get_dataloader_for_distributed(rows(), BATCH // world, shuffle=False)
    passes = []
    for which in (loader, loader, loader, in_order):
        if len(passes) == 2:
            which.sampler.set_epoch(0)
        steps = [(index[: which.rows].tolist(), which.rows, which.weight, len(index)) for index, _ in which]
        assert len(steps) == len(which)
        passes.append(steps)
    torch.save(passes, folder / f"rows-{world}-{rank}.pt")


def test_every_row_is_one_ranks_once_an_epoch_in_an_order_of_its_own(tmp_path: Path) -> None:
    orders = {}
    for world in WORLDS:
        run_on_ranks(rows_worker, world, tmp_path, logs=tmp_path / "logs")
        ranks = [torch.load(tmp_path / f"rows-{world}-{rank}.pt") for rank in range(world)]
        orders[world] = [
            [[row for part in parts for row in part[0]] for parts in zip(*shares)] for shares in zip(*ranks)
        ]
        for shares in zip(*ranks):
            for step, parts in enumerate(zip(*shares)):
                total = min(BATCH, SIZE - step * BATCH)
                assert sum(part[1] for part in parts) == total
                assert [part[2] for part in parts] == [part[1] * world / total for part in parts]
                assert [part[3] for part in parts] == [max(1, part[1]) for part in parts]
    assert orders[1] == orders[2] == orders[3]
    first, second, again, in_order = orders[1]
    assert all(sorted(chain(*steps)) == list(range(SIZE)) for steps in orders[1])
    assert first != second and first == again and list(chain(*in_order)) == list(range(SIZE))


def metrics_worker() -> None:
    rank, world, local_rank = init_distributed(device="cpu", timeout=60)
    assert (rank, world, local_rank) == init_distributed() and local_rank == rank == dist.get_rank()
    assert dist.get_world_size() == world
    mine = {
        "plain": rank,
        "tensor": torch.tensor([float(rank)]),
        "rows": (10.0 * rank, rank),
        f"only {rank}": torch.tensor(float(rank)),
        "none": (0.0, 0),
        "infinite": math.inf,
    }
    found = sync_metrics(mine)
    assert found["plain"] == found["tensor"] == sum(range(world)) / world
    assert found["rows"] == 10.0 or (world == 1 and math.isnan(found["rows"]))
    assert [found[f"only {other}"] for other in range(world)] == list(range(world))
    assert math.isnan(found["none"]) and found["infinite"] == math.inf
    for wrong in (torch.zeros(2), "text", (1.0, -1.0), (1.0, 2.0, 3.0), torch.tensor(1j)):
        with pytest.raises(UserError, match="'wrong'"):  # on all ranks, though only the last gave it
            sync_metrics({"wrong": wrong} if rank == world - 1 else {})
    assert sync_metrics({"after": 1}) == {"after": 1.0}


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def refusals_worker() -> None:
    rank, world, _ = init_distributed(device="cpu", timeout=60)
    shared = net(0)
    with pytest.raises(UserError, match="shares a trainable parameter with another module"):
        setup_distributed_models(shared, nn.Sequential(shared))
    setup_distributed_models(shared, nn.Sequential(net(0)).requires_grad_(False))
    if world > 1:
        with pytest.raises(UserError, match=r"len\(dataset\) must be the same on all ranks; by rank it is \[5, 6"):
            get_dataloader_for_distributed(range(5 + rank), 2)
        with pytest.raises(UserError, match="seed must be the same on all ranks"):
            get_dataloader_for_distributed(range(5), 2, seed=rank)
        with pytest.raises(UserError, match="batch_size must be the same on all ranks"):
            get_dataloader_for_distributed(range(5), 2 + rank)
        only = r"by rank it is \['weight \[3, 2\] torch.float32', "  # what differs, and nothing else
        with pytest.raises(UserError, match=f"the weights of Linear must be the same on all ranks; {only}"):
            setup_distributed_models(nn.Linear(2, 3 + rank))
    for wrong, sentence in (({"drop_last": True}, "drop_last is decided"), ({"sampler": [1]}, "sampler is decided")):
        with pytest.raises(UserError, match=sentence):
            get_dataloader_for_distributed(range(5), 2, **wrong)
    with pytest.raises(UserError, match="has no length"):
        get_dataloader_for_distributed(Stream(), 2)
    with pytest.raises(UserError, match="epochs are counted from 0; -1 is none"):
        get_dataloader_for_distributed(range(5), 2).set_epoch(-1)
    for size, batch in ((0, 2), (5, 0), (5, "4"), (5, None)):
        with pytest.raises(UserError, match=r"must (be|have) at least 1"):
            get_dataloader_for_distributed(range(size), batch)
    dist.destroy_process_group()
    with pytest.raises(UserError, match="the process group was destroyed"):
        sync_metrics({})


def existing_worker() -> None:
    """A group that the loop made itself is used as it is."""
    dist.init_process_group("gloo")
    assert init_distributed() == (dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"]))
    (module,) = setup_distributed_models(net(dist.get_rank()))
    assert torch.equal(next(module.parameters()), next(net(0).parameters()))


def frozen_worker() -> None:
    """Tensors of every kind come from rank 0, also where nothing is trained."""
    rank, _, _ = init_distributed(device="cpu", timeout=60)
    module = nn.Module()
    values = {
        "mask": torch.tensor([rank == 0, True]),
        "rounded": torch.full((2,), float(rank), dtype=torch.bfloat16),
        "count": torch.tensor(rank),
        "turned": torch.full((2, 3), float(rank)).t(),
        "empty": torch.zeros(0),
    }
    for name, value in values.items():
        module.register_buffer(name, value)
    trained = net(rank)
    trained.register_buffer("mask", torch.tensor([rank == 0]))
    found, replica = setup_distributed_models(module, trained)
    assert found is module and replica.module.mask.all()
    assert found.mask.tolist() == [True, True] and int(found.count) == 0
    assert not found.rounded.any() and not found.turned.any() and found.turned.shape == (3, 2)


@pytest.mark.parametrize("worker", [metrics_worker, refusals_worker, existing_worker, frozen_worker])
@pytest.mark.parametrize("world", WORLDS)
def test_on_real_processes(worker: object, world: int, tmp_path: Path) -> None:
    run_on_ranks(worker, world, logs=tmp_path)  # type: ignore[arg-type]


def example(folder: Path, command: Sequence[str], env: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [*command, str(EXAMPLE)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def last_line(processes: Sequence["subprocess.Popen[str]"]) -> str:
    output = "".join(process.communicate(timeout=100)[0] for process in processes)
    assert all(process.returncode == 0 for process in processes), output
    assert output.count("epoch 20 loss") == 1, "one rank prints: they know of each other"
    return next(line for line in output.splitlines() if line.startswith("epoch 20"))


def srun_variables(rank: int) -> dict[str, str]:
    """What srun sets for the second of three steps of a job."""
    return {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "1",
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_LOCALID": str(rank),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, torch.Tensor]]:
    """The last line and the weights of the example in one process, without a launcher."""
    folder = tmp_path_factory.mktemp("alone")
    line = last_line([example(folder, [sys.executable])])
    assert float(line.split()[-1]) < 0.05
    return line, torch.load(folder / "net.pt")


def test_the_example_under_torchrun(alone: tuple[str, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    assert last_line([example(tmp_path, torchrun)]) == alone[0]
    torch.testing.assert_close(torch.load(tmp_path / "net.pt"), alone[1], rtol=1e-3, atol=1e-4)


@pytest.mark.long
def test_the_example_with_the_variables_of_srun(alone: tuple[str, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    assert last_line([example(tmp_path, [sys.executable], srun_variables(rank)) for rank in range(2)]) == alone[0]


@pytest.mark.long
@pytest.mark.parametrize("program", ["mpiexec.mpich", "mpiexec.openmpi"])
def test_the_example_under_mpiexec(program: str, alone: tuple[str, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    require("mpiexec", [program])
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env = {**root, "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    assert last_line([example(tmp_path, [program, "-n", "2", sys.executable], env)]) == alone[0]
