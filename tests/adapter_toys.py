"""A bench on any ranks, and the adapters that tests train, for the toy network."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from samestep import Lora
from samestep.core.rundir import RunDir
from samestep.train.bench import Bench
from samestep.train.config import Config, Distributed
from samestep.train.logging.console import Screen
from samestep.world.world import World
from toys import SETTINGS

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
