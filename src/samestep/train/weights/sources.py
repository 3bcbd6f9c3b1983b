"""Where weights come from: a run, one of its checkpoints, a plain weight file, a folder of safetensors, or a model of
the Hub, which is such a folder once it is downloaded."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from samestep.checkpoint.across_ranks import broadcast_tensors
from samestep.checkpoint.loading import verified_manifest
from samestep.checkpoint.manifest import MANIFEST
from samestep.checkpoint.manifest import verify as damage_of
from samestep.checkpoint.state import join_keys
from samestep.checkpoint.weight_files import check_shapes, open_weight_file
from samestep.checkpoint.weight_sources import CheckpointWeights, LayeredWeights, WeightSource, read_all
from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.core.rundir import RunDir
from samestep.models.hub import find_model
from samestep.models.llama_form import llama_names
from samestep.train.learner.lora import brings_its_base, frozen_names, has_adapters
from samestep.train.record.run_record import RunRecord
from samestep.train.weights.adapter_weights import fill_adapted, holds_adapters
from samestep.train.weights.run_checkpoints import (
    choose_checkpoint,
    choose_learner,
    choose_together,
    learners_of,
    learners_of_run,
)
from samestep.world.world import World

logger = logging.getLogger(__name__)
OUTER = "model."
"""Published weights are often those of a larger module that calls the network `model`."""


def find_weights(source: Path, learner: str = "model") -> dict[str, Tensor]:
    """The full weights of a learner, from whatever `source` names."""
    return read_all(open_weights(source, learner))


def open_weights(source: Path, learner: str = "model", *, verify: bool = True) -> WeightSource:
    """The weights of a learner, from whatever `source` names, left on the disk until they are copied.

    `verify`: read every byte of a checkpoint first, and refuse a damaged one.
    """
    if not source.exists():
        raise UserError(f"{source} does not exist; give a run directory, a checkpoint folder, or a weight file")
    if is_run(source):
        return checkpoint_weights(choose_checkpoint(RunDir(source), learner=learner), learner, verify=False)
    if is_checkpoint(source):
        return checkpoint_weights(source, learner, verify=verify)
    weights, _, notes = open_weight_file(source)
    for note in notes:
        logger.warning("%s", note)
    return weights


def checkpoint_weights(path: Path, learner: str, *, averaged: bool = False, verify: bool = True) -> WeightSource:
    """The weights of a learner in a checkpoint; with `averaged`, its averaged ones where the run has them."""
    if verify:
        verified_manifest(path)
    known = learners_of(path)
    parts = known[choose_learner(known, learner, f"the checkpoint {path}")]
    weights = CheckpointWeights(path, join_keys((parts.state, "model")), verify=False)
    if not averaged or parts.average is None:
        return weights
    # Only parameters are averaged: buffers come with the weights themselves.
    return LayeredWeights(weights, CheckpointWeights(path, join_keys((parts.average, "model")), verify=False))


def read_extra(path: Path) -> Mapping[str, Any]:
    """What a plain weight file holds beside weights."""
    return open_weight_file(path).extra


def fill(module: nn.Module, source: WeightSource, what: str) -> None:
    """Copy weights into a module on its device, tensor by tensor; refuse, before the first, any that do not fit.

    Of a network with adapters, its base or its adapters are filled, whichever the source holds; of one that brings its
    base, what trains, and buffers, and the base if the source holds that too, as an exported one does.
    """
    if brings_its_base(module):
        frozen = frozen_names(module)
        has_base = frozen <= source.layout.keys()
        source.fill(fitting_tensors(module, source, what, without=() if has_base else frozen))
    elif has_adapters(module):
        fill_adapted(module, source, what, OUTER)
    else:
        source.fill(fitting_tensors(module, source, what))


def fitting_tensors(
    module: nn.Module, source: WeightSource, what: str, without: Collection[str] = ()
) -> dict[str, Tensor]:
    """The module's tensors by their names in the source, but for some; refuses weights whose names or shapes do not
    fit."""
    own = {name: tensor for name, tensor in module.state_dict().items() if name not in without}
    names = names_in(source, own)
    left_out = _other_names(module, [name for name in own if names[name] in source.layout])
    targets = {names[name]: target for name, target in own.items() if name not in left_out}
    check_shapes(source.layout, {name: target.shape for name, target in targets.items()}, what)
    return targets


@dataclass(frozen=True)
class SourceFill:
    """Fills a module from a source. Where only rank 0 sees that, it broadcasts the weights."""

    source: WeightSource | None
    """None on a rank that does not see it."""
    path: Path
    """Where it is."""
    world: World
    shared: bool = True
    """Whether every rank sees the source."""

    def __call__(self, module: nn.Module) -> None:
        if self.source is not None:
            fill(module, self.source, f"weights of {self.path}")
        if not self.shared:
            broadcast_tensors(self.world, module.state_dict())

    @property
    def holds_adapters(self) -> bool:
        """Whether the source holds adapters, and no base. Collective."""
        found = self.source is not None and holds_adapters(self.source)
        return found if self.shared else bool(self.world.share(found))

    @property
    def hashes(self) -> Mapping[str, str]:
        """Of a checkpoint: the hashes of what its run used without saving it, by what it was."""
        found: Mapping[str, str] = (
            self.source.about.get("frozen", {}) if isinstance(self.source, CheckpointWeights) else {}
        )
        return found


def read_again(open_source: Callable[[], SourceFill], what: str) -> SourceFill:
    """What fills `what`, which is in no checkpoint, from a source that is opened again at a resume."""
    try:
        return open_source()
    except UserError as error:
        raise UserError(
            f"{what} is in no checkpoint and is read again at every start, but that fails: {error}"
        ) from None


def names_in(source: WeightSource, own: Collection[str]) -> dict[str, str]:
    """The name in the source of each weight of a network: the same, or with `model.` in front, or, of the built-in
    causal network, that of a Llama."""
    if any(name in source.layout for name in own):
        return {name: name for name in own}
    if any(OUTER + name in source.layout for name in own):
        return {name: OUTER + name for name in own}
    as_llama = llama_names(own)
    is_llama = as_llama is not None and any(name in source.layout for name in as_llama.values())
    return as_llama if as_llama is not None and is_llama else {name: name for name in own}


def _other_names(module: nn.Module, found: Collection[str]) -> set[str]:
    """Further names of parameters of which one name was found: a file may hold a shared tensor under one of them."""
    named = dict(module.named_parameters(remove_duplicate=False))
    known = {id(named[name]) for name in found if name in named}
    return {name for name, parameter in named.items() if name not in found and id(parameter) in known}


def is_checkpoint(path: Path) -> bool:
    return (path / MANIFEST).exists()


def run_of(checkpoint: Path) -> RunDir | None:
    """The run that a checkpoint is in; None if it was copied out of it."""
    run = next(iter(checkpoint.absolute().parents[2:3]), None)
    return RunDir(run) if run is not None and is_run(run) else None


def may_be_removed(path: Path) -> bool:
    """Whether weights are those of a run, or of a checkpoint in one: it may go on, and remove the checkpoint."""
    return is_run(path) or (is_checkpoint(path) and run_of(path) is not None)


def is_run(path: Path) -> bool:
    """Whether a folder is a run directory: a published model has a config.json too, but of another kind."""
    return RunRecord.read_if_readable(RunDir(path)) is not None


class NamedWeights:
    """The weights that a user named. Rank 0 looks, and chooses a run's checkpoint for all ranks; then every rank reads
    it.

    What is said to be collective must be asked for by all ranks alike.
    """

    def __init__(self, name: str | Path, world: World, shared: bool = True) -> None:
        """A text may be a model of the Hub, a path never is. `shared`: all ranks see it, or rank 0 reads it for all."""
        self.name, self._world, self._shared = str(name), world, shared
        self._is_path = isinstance(name, Path)
        self._checkpoints: dict[str, Path] = {}
        self._damage_of = cache(damage_of)  # two learners may be in one checkpoint, which is read in full once

    @cached_property
    def path(self) -> Path:
        """Where they are; a model of the Hub is downloaded when this is first asked for. Collective."""
        return Path(self.name) if self._is_path else find_model(self.name, self._world)

    @cached_property
    def is_gone(self) -> bool:
        """Whether there is nothing at the path. Collective."""
        return bool(self._on_main(lambda: not self.path.exists()))

    @cached_property
    def is_file(self) -> bool:
        """Whether it holds the weights of one network, which it does not name. Collective."""
        return bool(self._on_main(self._is_file))

    @cached_property
    def learners(self) -> list[str]:
        """The learners in a run or a checkpoint. Collective."""
        found: list[str] = self._on_main(lambda: sorted(self._learners()))
        return found

    def learner_like(self, name: str) -> str:
        """The learner of that name, or else the only one there is. Collective."""
        if self.is_file or name in self.learners:
            return name
        return choose_learner(self.learners, None if len(self.learners) == 1 else name, str(self.path))

    def fill_for(self, learner: str) -> SourceFill:
        """What fills a module with the weights of a learner. Collective."""
        path = self.path if self.is_file else self._checkpoint(learner)
        weights = None
        if self._shared or self._world.is_main:
            weights = open_weights(path) if self.is_file else checkpoint_weights(path, learner, verify=False)
        return SourceFill(weights, path, self._world, self._shared)

    def describe(self, learner: str) -> str:
        """Its name, of a run with the checkpoint, of a model of the Hub with the commit. Collective."""
        if self.is_file or self._checkpoint(learner) == self.path:
            return self.name if self.path == Path(self.name) else f"{self.name}, commit {self.path.name[:12]}"
        path = self._checkpoint(learner)
        return f"{self.path}, {path.parent.name}/{path.name}"

    def misfit(self, module: nn.Module) -> str:
        """Why a plain weight file does not fit this module; empty if it does."""
        weights = open_weights(self.path)
        try:
            fitting_tensors(module, weights, f"weights of {self.path}")
        except UserError as error:
            return str(error)
        return ""

    def _is_file(self) -> bool:
        if not self.path.exists():
            raise UserError(f"{self.path} does not exist; give a run directory, a checkpoint folder, or a weight file")
        return not is_run(self.path) and not is_checkpoint(self.path)

    def _learners(self) -> set[str]:
        return set(learners_of(self.path)) if is_checkpoint(self.path) else learners_of_run(RunDir(self.path))

    def _checkpoint(self, learner: str) -> Path:
        """The same for all ranks, and intact: a run that is still training may save another one meanwhile."""
        if learner not in self._checkpoints:
            self._checkpoints[learner] = self._choose(learner)
        return self._checkpoints[learner]

    def _choose(self, learner: str) -> Path:
        if not self._on_main(lambda: is_checkpoint(self.path)):
            return choose_together(self._world, RunDir(self.path), learner=learner, damage_of=self._damage_of)
        damage = self._on_main(lambda: self._damage_of(self.path))
        if damage is not None:
            raise UserError(f"the checkpoint {self.path} is damaged: {damage}; use another one")
        return self.path

    def _on_main(self, work: Callable[[], Json]) -> Json:
        doing = f"opening {self.path}"  # on all ranks, since it is collective
        return self._world.run_on_all_ranks(doing, lambda: work() if self._world.is_main else None)[0]
