"""A recipe in which one rank hangs, in every way that the watchdog must distinguish."""

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
NAME = "faults.hang_faults"
HANG_STEP = 6
"""The step in which the rank hangs."""
HANG_SECONDS = 1000.0
"""Far longer than any limit."""
HEARTBEAT_SECONDS = 2.5
"""A silent rank is judged by its last heartbeat: before this time has passed, that may say that the rank starts."""


@dataclass(frozen=True)
class HangConfig(Config):
    """A small network, and a rank that hangs."""

    fault: str = free("")
    """Where or how it hangs: data, forward, held, save, before, skip, spin, stopped or build; empty: it does not."""
    at_rank: int = free(1)
    """The rank that hangs."""
    at_step: int = free(HANG_STEP)
    """The step in which it hangs."""
    moment: str = free("")
    """A file; the time of the fault is written to it."""


class SineRows:
    """Rows of a sine wave; loading one of them may hang."""

    def __init__(self, before_hang: Callable[[], None] | None) -> None:
        self.before_hang, self.loaded = before_hang, 0

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Batch:
        self.loaded += 1
        if self.before_hang and self.loaded > 2 * HANG_STEP:
            self.before_hang()
            time.sleep(HANG_SECONDS)  # hang: data
        x = torch.tensor([index / 50.0])
        return {"x": x, "y": x.sin()}


def spin() -> None:
    """Compute forever, in Python."""
    while True:
        sum(range(1000))  # hang: spin


def hold_gil() -> None:
    """Sleep in C without releasing the GIL."""
    ctypes.PyDLL(None).sleep(int(HANG_SECONDS))  # hang: held


def hanging_write(store: Store, snapshot: Any) -> Any:
    """Replaces `Store.write`."""
    time.sleep(HANG_SECONDS)  # hang: save


def hang(fault: str) -> None:
    """Called in the forward pass: hang there, or prepare a hang in the next save."""
    if fault == "forward":
        time.sleep(HANG_SECONDS)  # hang: forward
    if fault == "spin":
        spin()
    if fault in ("held", "stopped"):
        time.sleep(HEARTBEAT_SECONDS)
    if fault == "held":
        hold_gil()
    if fault == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)  # hang: stopped
    if fault == "save":
        Store.write = hanging_write  # type: ignore[method-assign]
    if fault == "before":
        time.sleep(HANG_SECONDS)  # hang: before


def build(bench: Bench) -> Fit:
    config: HangConfig = bench.config
    fault = config.fault if bench.world.rank == config.at_rank else ""

    def note_time() -> None:
        if config.moment:
            Path(config.moment).write_text(str(time.time()))

    if fault == "build":
        time.sleep(HANG_SECONDS)  # hang: build
    calls, group = 0, dist.new_group(backend="gloo") if bench.world.control is not None else None

    def loss(model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        nonlocal calls
        calls += 1
        now = calls == config.at_step + 1
        if now and fault:
            note_time()
            hang(fault)
        mean = batch["x"].mean()
        if bench.world.control is not None and not (now and fault == "skip"):
            dist.all_reduce(mean, group=group)
        return {"error": (model(batch["x"]) - batch["y"]).square().sum(1)}

    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    return Fit(bench.learner(net), bench.feed(SineRows(note_time if fault == "data" else None)), loss)


def settings(out: Path, limit: float, start_limit: float = 120.0, **changes: Any) -> dict[str, Any]:
    """A run that would be long if nothing hung; `limit` is the watchdog's limit for every activity but the start."""
    limits = dict.fromkeys(("step", "data", "save", "validate", "finish"), limit)
    return {
        "out": str(out),
        "max_steps": 2000,
        "batch_size": 1,
        "global_batch_size": 2,
        "watch": {**limits, "start": start_limit},
        "distributed": {"device": "cpu", "backend": "gloo", "timeout": 600.0},
        "checkpoint": {"every_steps": HANG_STEP + 1, "every_epochs": 0},
        "log": {"quiet": True, "tensorboard": False},
        **changes,
    }


recipe = Recipe(config=HangConfig, stages=lambda config: [Stage("fit", build)])
