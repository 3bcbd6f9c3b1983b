"""Toy data and toy modules, a reference loop written by hand, and a way to run many small proofs on real ranks.

The reference knows nothing of ranks, micro-batches or this package: one process, the full global batch at once,
torch's own AdamW and clipping. Whatever the runtime does with the same rows must give the same parameters.
"""

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.data.feed import Feed
from samestep.data.loading import Batch, RowWeights
from samestep.data.order import Order, Sequential, Shuffled
from samestep.launching.local import start
from samestep.parallel.wrap import full_tensor, wrap
from samestep.train.learner.learner import Learner
from samestep.train.learner.optimizer import OptimSettings
from samestep.world.world import World

WORLDS = [(1, "lone"), (1, "ddp"), (1, "fsdp"), (2, "ddp"), (2, "fsdp"), (3, "ddp"), (3, "fsdp")]
"""Processes and strategy; `lone` is a process without a group."""
PRELOAD = ("torch", "torch.distributed.checkpoint", "torch.distributed.fsdp")
SETTINGS = OptimSettings(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=0.5)

NOT_SHARDED = [world for world in WORLDS if world[1] != "fsdp"]
UP_TO_2 = [world for world in WORLDS if world[0] <= 2]
SEVERAL = [world for world in WORLDS if world[0] > 1]
LONE = WORLDS[:1]

Case = Callable[[World, str], None]


class Points:
    """Rows with a `rows` method. `tokens` and `pairs` are weights of two terms, often zero."""

    def __init__(self, size: int) -> None:
        random = torch.Generator().manual_seed(size)
        self.x = torch.randn(size, 4, generator=random, dtype=torch.float64)
        self.y = torch.randn(size, 2, generator=random, dtype=torch.float64)
        self.tokens = torch.arange(size) % 5
        self.pairs = (torch.arange(size) % 3 == 1).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        raise AssertionError("a dataset with rows() is not asked row by row")

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        chosen = torch.as_tensor(indices)
        return {name: getattr(self, name)[chosen] for name in ("x", "y", "tokens", "pairs")}


class Net(nn.Module):
    """A little of everything that decay groups distinguish: an embedding, matrices, a norm, biases."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.table = nn.Embedding(5, width)
        self.first = nn.Linear(4, width)
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, 2)
        self.shard_units = [self.first]

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.last(self.norm(torch.tanh(self.first(x)) + self.table(tokens)))


def error(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The loss of `Net` on `Points`."""
    return {"error": (module(batch["x"], batch["tokens"]) - batch["y"]).square().sum(1)}


class CountingCompiler:
    """A compiler that runs what it is given as it is."""

    def __init__(self) -> None:
        self.compiled = 0

    def __call__(self, graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.compiled += 1
        return graph.forward


DECAYED = ("first.weight", "last.weight")


def made(build: Callable[[], nn.Module], seed: int = 1) -> Any:
    """A module whose initial values depend on nothing but the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def rate(update: int) -> float:
    """A learning rate that differs at every update, so that a miscounted one shows."""
    return 0.01 / (1 + update)


def learner_of(module: nn.Module, world: World, strategy: str, **changes: Any) -> Learner:
    """A learner as a bench would make it."""
    chosen = {"rate": rate, "settings": SETTINGS, **changes}
    compute = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(changes.get("mixed_precision", "none"))
    return Learner(wrap(module, world, strategy, compute), world, **chosen)


def feed_of(
    rows: Any,
    world: World,
    batch: int,
    micro: int,
    steps: int,
    count: RowWeights | None = None,
    order: Order | None = None,
) -> Feed:
    """A shuffled feed."""
    order = order or Shuffled(len(rows), batch, seed=3)
    return Feed(rows, order, world, micro_rows=micro, length=steps, count=count)


def in_order(rows: Any, batch: int) -> Order:
    """An order in which a test knows which rows a step has."""
    return Sequential(len(rows), batch)


class ByHand:
    """The reference: one process, the whole batch at once, only torch's own parts."""

    def __init__(self, module: nn.Module, decayed: Sequence[str] = DECAYED, settings: OptimSettings = SETTINGS) -> None:
        named = dict(module.named_parameters())
        groups = [
            {"params": [p for n, p in named.items() if n in decayed], "weight_decay": settings.weight_decay},
            {"params": [p for n, p in named.items() if n not in decayed], "weight_decay": 0.0},
        ]
        self.module, self.clip = module, settings.clip
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=settings.betas, eps=settings.eps, foreach=False)

    def update(self, loss: Tensor, learning_rate: float) -> float:
        """One update; the gradient norm before clipping."""
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.clip or float("inf")))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm


def close(actual: Mapping[str, Tensor], wanted: Mapping[str, Tensor], tolerance: float = 1e-10) -> None:
    """Every tensor agrees; sharded ones are gathered."""
    assert sorted(actual) == sorted(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(
            full_tensor(actual[name].detach()),
            value.detach(),
            rtol=tolerance,
            atol=tolerance / 100,
            msg=lambda m: f"{name}: {m}",  # noqa: B023
        )


def weights_of(learner: Learner) -> dict[str, Tensor]:
    """The full weights on every rank, as a copy."""
    return {name: full_tensor(value).detach().clone() for name, value in learner.weights().items()}


def moments_of(learner: Learner) -> dict[str, Tensor]:
    """Adam's state on every rank, in full, as a copy."""
    return {name: full_tensor(value).detach().clone() for name, value in learner.state_dict()["optimizer"].items()}


def same_everywhere(world: World, tensors: Iterable[Tensor]) -> None:
    """Every rank holds the same bits."""
    mine = [t.double().flatten().tolist() for t in tensors]
    assert all(str(theirs) == str(mine) for theirs in world.gather(mine))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Arithmetic in another type for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def in_worlds(worlds: Sequence[tuple[int, str]]) -> Callable[[Case], Case]:
    """Declares in which worlds alone a case proves something."""

    def declare(case: Case) -> Case:
        case.worlds = worlds  # type: ignore[attr-defined]
        return case

    return declare


def worlds_of(case: Case) -> Sequence[tuple[int, str]]:
    """The worlds that a case declares, or all."""
    return getattr(case, "worlds", WORLDS)


def on_ranks(cases: Sequence[Case], worlds: Sequence[tuple[int, str]] = WORLDS) -> Callable[..., None]:
    """A module's `test_on_ranks`: a test for each of its CASES in each of these worlds that the case declares."""
    for case in cases:
        in_worlds([world for world in worlds if world in worlds_of(case)])(case)
    chosen = [pytest.param(case, *world, id=_id(case, *world)) for case in cases for world in worlds_of(case)]

    @pytest.mark.parametrize(("case", "nproc", "strategy"), chosen)
    def test(proofs: Proofs, case: Case, nproc: int, strategy: str) -> None:
        proofs.check(case, nproc, strategy)

    return test


@dataclass
class Proofs:
    """Cases run on real ranks, one launch for all cases at a world size; each has a test of its own for its result."""

    folder: Path
    cases: Sequence[Case]
    launched: set[int] = field(default_factory=set)

    def check(self, case: Case, nproc: int, strategy: str) -> None:
        """The case must have passed on every rank."""
        if nproc not in self.launched:
            self.launched.add(nproc)
            start(_worker, nproc, self.folder, self.cases, logs=self.folder / f"logs_{nproc}", preload=PRELOAD).wait(
                800
            )
        for rank in range(nproc):
            result = _result_file(self.folder, case, nproc, strategy, rank)
            assert result.exists(), f"rank {rank} did not get through {case.__name__}, which failed elsewhere"
            assert result.read_text() == "", f"rank {rank}:\n{result.read_text()}"


def run_on_ranks(
    target: Callable[..., object], nproc: int, *args: object, logs: Path, timeout: float = 60.0, **settings: Any
) -> str:
    """Run a worker function that must end well on every rank; what the ranks printed."""
    workers = start(target, nproc, *args, logs=logs, preload=PRELOAD, **settings)
    codes = workers.wait(timeout)
    output = "\n".join(workers.output(rank) for rank in range(nproc))
    assert codes == [0] * nproc, f"exit codes {codes}\n{output}"
    return output


def gone(process: int) -> bool:
    """Whether a process has ended; its parent may not have waited for it yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _result_file(folder: Path, case: Case, nproc: int, strategy: str, rank: int) -> Path:
    return folder / f"{_id(case, nproc, strategy)}-{rank}.txt"


def _id(case: Case, nproc: int, strategy: str) -> str:
    return f"{case.__name__}-{nproc}-{strategy}"


def _worker(folder: Path, cases: Sequence[Case]) -> None:
    torch.set_default_dtype(torch.float64)
    tempfile.tempdir = str(folder)
    world = World.join(device="cpu", timeout=200)  # another rank may compile on a busy machine
    declared = [each for case in cases for each in worlds_of(case)]
    for strategy in dict.fromkeys(strategy for nproc, strategy in declared if nproc == world.size):
        for case in [case for case in cases if (world.size, strategy) in worlds_of(case)]:
            error = ""
            try:
                case(World.single() if strategy == "lone" else world, strategy)
            except BaseException:  # what pytest.raises reports is no Exception
                error = traceback.format_exc()
            _result_file(folder, case, world.size, strategy, world.rank).write_text(error)
            if not _all_through(world, case, strategy, patience=5 if error else 250):
                os._exit(1)  # the ranks are out of step: later cases would fail for this reason
    world.leave()


def _all_through(world: World, case: Case, strategy: str, patience: float) -> bool:
    """Whether every rank has come to the end of a case, well or badly."""
    key = f"through/{case.__name__}/{strategy}"
    world.store.add(key, 1)
    end = time.monotonic() + patience
    while world.store.add(key, 0) < world.size and time.monotonic() < end:
        time.sleep(0.002)
    return bool(world.store.add(key, 0) == world.size)


class CountGathers(TorchDispatchMode):
    """How often tensors are gathered from all ranks."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "allgather_base" in str(func)
        return func(*args, **(kwargs or {}))
