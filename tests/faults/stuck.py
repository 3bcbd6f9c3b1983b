"""A recipe of which one rank gets stuck, in every way that the watchdog must tell apart."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from samestep import Bench, Config, Fit, Recipe, Stage
from samestep.checkpoint.store import Store
from samestep.core.config import free

Batch = dict[str, Tensor]
NAME = "faults.stuck"
AT = 6
"""The step in which it happens."""
LONG = 1000.0


@dataclass(frozen=True)
class Stuck(Config):
    """A small net, and a rank that does not go on."""

    fault: str = free("")
    """data, forward, held, save, before, skip, spin, stopped or build."""
    at_rank: int = free(1)
    """Which rank it is."""
    at_step: int = free(AT)
    """When."""
    moment: str = free("")
    """A file that is written when it happens."""


class Waves:
    """Rows on a wave; one of them may take for ever."""

    def __init__(self, stuck: Callable[[], None] | None) -> None:
        self.stuck, self.given = stuck, 0

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Batch:
        self.given += 1
        if self.stuck and self.given > 2 * AT:
            self.stuck()
            time.sleep(LONG)  # stuck: data
        x = torch.tensor([index / 50.0])
        return {"x": x, "y": x.sin()}


def spin() -> None:
    """Busy for ever, in Python."""
    while True:
        sum(range(1000))  # stuck: spin


def hold() -> None:
    """Asleep in C, with the interpreter in its hands."""
    ctypes.PyDLL(None).sleep(int(LONG))  # stuck: held


def sleepy_write(store: Store, snapshot: Any) -> Any:
    """In place of a store's write."""
    time.sleep(LONG)  # stuck: save


def stick(fault: str) -> None:
    """What happens in the forward pass."""
    if fault == "forward":
        time.sleep(LONG)  # stuck: forward
    if fault == "spin":
        spin()
    if fault == "held":
        hold()
    if fault == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)  # stuck: stopped
    if fault == "save":
        Store.write = sleepy_write  # type: ignore[method-assign]
    if fault == "before":
        time.sleep(LONG)  # stuck: before


def build(bench: Bench) -> Fit:
    config: Stuck = bench.config
    fault = config.fault if bench.world.rank == config.at_rank else ""

    def note() -> None:
        if config.moment:
            Path(config.moment).write_text(str(time.time()))

    if fault == "build":
        time.sleep(LONG)  # stuck: build
    calls, own = 0, dist.new_group(backend="gloo") if bench.world.control is not None else None

    def loss(model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        nonlocal calls
        calls += 1
        now = calls == config.at_step + 1
        if now and fault:
            note()
            stick(fault)
        mean = batch["x"].mean()
        if bench.world.control is not None and not (now and fault == "skip"):
            dist.all_reduce(mean, group=own)
        return {"error": (model(batch["x"]) - batch["y"]).square().sum(1)}

    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    return Fit(bench.learner(net), bench.feed(Waves(note if fault == "data" else None)), loss)


def settings(out: Path, limit: float, **changes: Any) -> dict[str, Any]:
    """A run that would last, were nothing stuck; everything has one limit."""
    return {
        "out": str(out),
        "max_steps": 2000,
        "batch_size": 1,
        "global_batch_size": 2,
        "watch": {"limit": limit},
        "distributed": {"device": "cpu", "backend": "gloo", "timeout": 600.0},
        "checkpoint": {"every_steps": AT + 1, "every_epochs": 0},
        "log": {"quiet": True, "tensorboard": False},
        **changes,
    }


recipe = Recipe(config=Stuck, stages=lambda config: [Stage("fit", build)])
