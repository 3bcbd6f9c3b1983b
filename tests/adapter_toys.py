"""A bench on any ranks, and the adapters that tests train, for the toy network."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samestep import Lora
from samestep.core.rundir import RunDir
from samestep.train.api.bench import Bench
from samestep.train.logging.console import Screen
from samestep.train.record.config import Config, Distributed
from samestep.train.session.entry import train_with
from samestep.world.world import World
from toys import SETTINGS, run_on_ranks

LORA = Lora(rank=2, alpha=6, targets=["first", "last"])
CONFIG = Config(
    beta1=SETTINGS.betas[0],
    beta2=SETTINGS.betas[1],
    adam_eps=SETTINGS.eps,
    weight_decay=SETTINGS.weight_decay,
    clip=SETTINGS.clip,
)


def new_folder(world: World) -> Path:
    """A folder that all ranks see."""
    return Path(world.share(tempfile.mkdtemp() if world.is_main else None))


def bench_of(
    world: World,
    strategy: str,
    dtype: str = "float64",
    folder: Path | None = None,
    resumed: bool = False,
    shared: bool = True,
    **changes: Any,
) -> Bench:
    """A bench, by default in a folder of its own."""
    settings = Distributed(strategy="fsdp" if strategy == "fsdp" else "ddp", dtype=dtype)  # type: ignore[arg-type]
    config, rundir = replace(CONFIG, distributed=settings, **changes), RunDir((folder or new_folder(world)) / "run")
    return Bench(world, config, rundir, "fit", Screen(False), resumed=resumed, shared=shared)


BASE: dict[str, Any] = {
    "batch_size": 4,
    "global_batch_size": 8,
    "max_steps": 4,
    "learning_rate": 0.05,
    "distributed": {"device": "cpu"},
    "checkpoint": {"every_steps": 2, "background": False, "keep_last": 1},
    "log": {"tensorboard": False, "level": "warning"},
}


def launch_recipe(recipe: str, out: Path, name: str, expect: int = 0, **changes: Any) -> str:
    """Train the recipe of a test module; what was printed."""
    config, logs = {**BASE, "out": str(out), "name": name, **changes}, out / f"logs_{len(list(out.iterdir()))}"
    if expect == 0:
        return run_on_ranks(train_with, 1, recipe, config, logs=logs)
    with pytest.raises(AssertionError, match=rf"exit codes \[{expect}") as raised:
        run_on_ranks(train_with, 1, recipe, config, logs=logs)
    return str(raised.value)
