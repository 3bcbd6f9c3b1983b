"""Where weights come from: a run, one of its checkpoints, a plain weight file, or a folder of safetensors."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from samestep.checkpoint.across_ranks import broadcast_tensors
from samestep.checkpoint.loading import verified_manifest
from samestep.checkpoint.manifest import MANIFEST
from samestep.checkpoint.state import join_keys
from samestep.checkpoint.weight_files import check_shapes, open_weight_file
from samestep.checkpoint.weight_sources import CheckpointWeights, LayeredWeights, WeightSource, read_all
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.train.learner.lora import brings_its_base, frozen_names, has_adapters
from samestep.train.record.run_record import RunRecord
from samestep.train.weights.adapter_weights import fill_adapted, holds_adapters
from samestep.train.weights.run_checkpoints import choose_checkpoint, choose_learner, learners_of
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
    targets = {names[name]: target for name, target in own.items()}
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
    """The name in the source of each weight of a network: the same, or with `model.` in front."""
    has_outer = any(OUTER + name in source.layout for name in own) and not any(name in source.layout for name in own)
    return {name: OUTER + name if has_outer else name for name in own}


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint."""
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
