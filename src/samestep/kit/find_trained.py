"""The trained model that a user named where a network is wanted: a run, one of its checkpoints, or an exported one.

A run names its recipe, and that says which of its learners have a network of the wanted kind.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from samestep.core.config import listed
from samestep.core.errors import UserError
from samestep.core.paths import expand_home
from samestep.train.record.run_record import run_path
from samestep.train.trained.published import read_record
from samestep.train.trained.trained_model import Trained, open_trained
from samestep.train.weights.sources import is_checkpoint, is_run
from samestep.world.world import World

Offered = Callable[[Trained], Mapping[str, Any]]
"""What a trained model has of the wanted kind, by learner."""


class Named(NamedTuple):
    """A learner of a trained model."""

    source: str
    """A checkpoint, or what was exported."""
    learner: str


def find_trained(name: str, world: World, offered: Offered, kind: str) -> Named | None:
    """The trained model of a name, or None if it is none of samestep: rank 0 looks, as a run that still trains may save
    another checkpoint meanwhile. Collective."""

    def find() -> list[str] | None:
        named = split_name(name) if world.is_main else None
        return None if named is None else list(choose_trained(name, *named, offered, kind))

    found = world.run_on_all_ranks(f"finding {name}", find)[0]
    return None if found is None else Named(*found)


def split_name(name: str) -> tuple[str, str | None] | None:
    """The path of a run, a checkpoint or an exported model, and the learner that is named; None if it is none."""
    text, _, learner = name.rpartition(":")
    for source, wanted in ((name, None), (text, learner)):
        path = expand_home(run_path(source, "runs")) if source else Path()
        if source and (is_run(path) or is_checkpoint(path) or _is_exported(path)):
            return str(path), wanted
    return None


def _is_exported(path: Path) -> bool:
    """Whether a recipe is needed to open what is there; a folder of transformers is opened like any other."""
    is_one = path.is_dir() or (path.is_file() and path.suffix == ".safetensors")
    record = read_record(path) if is_one else None
    return record is not None and not record.form


def choose_trained(name: str, source: str, learner: str | None, offered: Offered, kind: str) -> Named:
    """The checkpoint and the learner that are meant; `kind` is what is wanted, in words."""
    trained = open_trained(source)
    known = dict(offered(trained))
    if not is_run(Path(source)):
        known = {learner: model for learner, model in known.items() if learner in trained.learners()}
    if not known:
        raise UserError(f"Name another model than {name}: it is of the recipe {trained.name}, and no {kind}.")
    chosen = learner or (next(iter(known)) if len(known) == 1 else "")
    if chosen not in known:
        choices = listed([f"{source}:{one}" for one in known], "or")
        raise UserError(f"Say which {kind} of {source} is meant: {choices}; {name} names none of them.")
    if chosen not in trained.learners():  # one of an earlier stage
        trained = open_trained(source, learner=chosen)
    return Named(str(trained.source), chosen)
