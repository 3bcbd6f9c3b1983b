"""Building the network of a learner as its recipe does, to load weights into it; no data is checked, nothing written.

A recipe that offers `networks` is asked for it. Of any other, the stage is built with a bench that leaves `build` as
soon as the learner is made, so what comes after it (often the data) is not needed.
"""

import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from samestep.core.errors import UserError
from samestep.core.json_files import write_json
from samestep.core.rundir import RunDir
from samestep.parallel.build import FillFunction
from samestep.train.api.bench import Bench
from samestep.train.api.recipe import Recipe, Stage
from samestep.train.learner.initialization import build_fresh
from samestep.train.logging.console import Screen
from samestep.train.record.fixed_values import read_fixed
from samestep.train.weights.bases import fix_base
from samestep.world.seeding import seed_everywhere
from samestep.world.world import World

LARGE = 64_000_000
"""From this many bytes on, an artifact is linked to and not copied."""
_NOT_COMPARED = ("plan", "data")
"""What is fixed of a stage and says nothing of its networks."""


@dataclass(frozen=True)
class TrainedStage:
    """A stage that was trained: its recipe, its settings, and the run it belongs to, as far as they are still there."""

    recipe: Recipe
    name: str
    """The recipe's name, for messages."""
    config: Any
    stage: str
    """Empty for a published model that does not name it."""
    run: RunDir | None = None
    """None for a checkpoint or a published model outside of its run."""
    base: Path | None = None
    """The base of a learner with adapters, if the recipe does not build it."""


@dataclass(frozen=True)
class BuiltNetwork:
    """A network as `build` makes it."""

    module: nn.Module
    """Maybe on the meta device."""
    initial: FillFunction | None = None
    """What the run fills it with at its start, as for a resume: whatever checkpoints do not hold comes from here."""


def build_network(trained: TrainedStage, learner: str) -> BuiltNetwork:
    """The network of a learner before it has its trained weights; torch's random state stays as it is."""
    networks: Mapping[str, Any] = trained.recipe.networks(trained.config) if trained.recipe.networks else {}
    with _as_in_training(trained.config):
        if learner not in networks:
            return _build_in_stage(trained, learner)
        module, _ = build_fresh(networks[learner], trained.config.seed, learner)
        return BuiltNetwork(module.to(getattr(torch, trained.config.distributed.dtype)))


class _Leave(BaseException):
    """Leaves `build` with the wanted network; no `except Exception` of a recipe stops it."""

    def __init__(self, network: BuiltNetwork) -> None:
        super().__init__()
        self.network = network


class LoadingBench(Bench):
    """A bench whose only purpose is the network of one learner."""

    wanted: str = ""

    def _on_network(self, learner: str, module: nn.Module, initial: FillFunction | None) -> None:
        if learner == self.wanted:
            raise _Leave(BuiltNetwork(module, initial))


def _build_in_stage(trained: TrainedStage, learner: str) -> BuiltNetwork:
    stage = find_stage(trained)
    with tempfile.TemporaryDirectory(prefix="samestep-load-") as folder:
        rundir = RunDir(Path(folder) / "run")
        if trained.run is not None:
            copy_run(trained.run, rundir, stage.name)
        settings = (trained.config, rundir, stage.name, Screen(False), trained.recipe.unused)
        bench = LoadingBench(World.single(), *settings, start=stage.start, resumed=True)
        bench.wanted = learner
        bench.feeds.compares_data = False  # whatever data there is now, the weights are those of the checkpoint
        if trained.base is not None:
            fix_base(bench.first_launch, learner, trained.base)
        try:
            stage.build(bench)
        except _Leave as leave:
            return leave.network
        except Exception as error:
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            raise UserError(
                f"the network of learner {learner!r} cannot be built again, because stage {stage.name!r} of "
                f"{trained.name} failed before it made it ({reason}); put back the files it reads, or give the recipe "
                "`networks`, which builds the network from the settings alone"
            ) from error
    made = ", ".join(repr(made.name) for made in bench.learners) or "none"
    raise UserError(f"stage {stage.name!r} of {trained.name} makes no learner {learner!r} any more; it makes {made}")


def find_stage(trained: TrainedStage) -> Stage:
    if not trained.stage:
        raise UserError(
            f"a published model does not say which stage of {trained.name} made it; give the recipe `networks`, which "
            "builds the network from the settings alone"
        )
    stages = trained.recipe.stages(trained.config)
    found = next((stage for stage in stages if stage.name == trained.stage), None)
    if found is None:
        names = ", ".join(repr(stage.name) for stage in stages) or "none"
        raise UserError(
            f"the checkpoint is of stage {trained.stage!r}, which {trained.name} no longer has with these settings (it "
            f"has {names}); put its data back, or give the recipe `networks`"
        )
    return found


def copy_run(run: RunDir, target: RunDir, stage: str, checkpoint: Path | None = None) -> None:
    """A copy for `build` to read and to write: what belongs to the stage is copied, all else is linked. Of the stage's
    checkpoints it has the one that is named, if one is."""
    fixed = read_fixed(run)
    for known in fixed.values():
        for name in _NOT_COMPARED:
            known.pop(name, None)
    write_json(target.first_launch, fixed)
    for folder in sorted(run.checkpoints("x").parent.glob("*")):
        copy = target.checkpoints(folder.name)
        if folder.name == stage and checkpoint is not None:
            copy.mkdir(parents=True)
            folder, copy = checkpoint, copy / checkpoint.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.symlink_to(folder.absolute(), target_is_directory=True)
    for artifacts in sorted(run.artifacts("x").parent.glob("*")):
        copy = target.artifacts(artifacts.name)
        copy.parent.mkdir(exist_ok=True)
        if artifacts.name == stage:
            shutil.copytree(artifacts, copy, copy_function=_copy_or_link)
        else:
            copy.symlink_to(artifacts.absolute(), target_is_directory=True)


def _copy_or_link(source: str, target: str) -> None:
    if os.path.getsize(source) < LARGE:
        shutil.copyfile(source, target)
    else:
        os.symlink(os.path.abspath(source), target)


@contextmanager
def _as_in_training(config: Any) -> Iterator[None]:
    """Seeds and number type as while a stage is built; afterwards as before."""
    states, dtype = (random.getstate(), np.random.get_state()), torch.get_default_dtype()
    try:
        with torch.random.fork_rng(devices=[]):
            seed_everywhere(config.seed)
            torch.set_default_dtype(getattr(torch, config.distributed.dtype))
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_default_dtype(dtype)
