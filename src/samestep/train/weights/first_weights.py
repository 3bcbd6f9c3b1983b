"""Where a stage's learners get their first weights from: an earlier stage, what the user named, or the run's seed.

`init_from=RUN` gives its weights to every learner that the run has, too, each in the first stage that trains it. A
plain weight file names no learner: it goes to `model`, or to the only learner that it fits. A later stage begins with
the weights of an earlier one if it names it (`Stage(start="align")`), else from the seed. A learner that the recipe
gives weights of its own (`bench.learner(init_from=...)`) takes those and no others. `continue_from` names a plain
weight file of another program (see continue_from_file.py).
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from samestep.checkpoint.manifest import find_checkpoints
from samestep.checkpoint.retention import Retention
from samestep.checkpoint.store import Store
from samestep.core.config import listed
from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.parallel.build import FillFunction
from samestep.train.learner.learner import Learner
from samestep.train.learner.lora import Lora, frozen_names, has_frozen_base
from samestep.train.record.config import named_source
from samestep.train.record.first_launch import StageInfo
from samestep.train.record.run_record import run_path
from samestep.train.weights.adapter_weights import check_peft_folder
from samestep.train.weights.bases import Bases
from samestep.train.weights.run_checkpoints import MODEL, ended_with_best, learners_of, metric_mode
from samestep.train.weights.sources import NamedWeights, SourceFill, checkpoint_weights, may_be_removed, read_again

logger = logging.getLogger(__name__)
_USERS = "first_weights"
"""In first_launch.json: the learners of a stage that began with what the user named."""


@dataclass(frozen=True)
class Origin:
    """Where the first weights of one learner are."""

    description: str
    open: Callable[[], SourceFill]
    path: Path | None = None
    """What was named; None: they are those of an earlier stage."""


class FirstWeights:
    """The first weights of one stage."""

    def __init__(self, stage: StageInfo) -> None:
        self._stage = stage
        self._named = NamedByUser(stage)
        self._earlier = EarlierStage(stage, stage.start) if stage.start is not None else None
        self._origins: dict[str, Origin] = {}
        self.descriptions: dict[str, str] = {}
        """By learner, where its weights come from, as text."""
        self.hashes: dict[str, Mapping[str, str]] = {}
        """By learner with a frozen base, the hashes of what the run that trained its first weights used without saving
        it."""
        self.bases = Bases(stage)

    def of(self, learner: str, own: str | None = None) -> FillFunction | None:
        """What fills a learner's module; None: it keeps what it was built with. `own` is what the recipe gives it."""
        if own is not None:
            return self._begin_at(learner, self._given_by_recipe(learner, own))
        origin = self._earlier.origin(learner) if self._earlier else self._named.origin(learner)
        if origin is None:
            self.descriptions[learner] = f"its model's own, or drawn from seed {self._stage.config.seed}"
            return None
        return self._begin_at(learner, origin)

    def of_trained(self, learner: str, own: str | None = None) -> FillFunction | None:
        """What fills the trained part of a learner's network that brings its frozen base; None: it has its values."""
        fill = self.of(learner, own)
        if isinstance(fill, SourceFill):
            self.hashes[learner] = fill.hashes
        return fill

    def of_fitting(self, learner: str, module: nn.Module) -> FillFunction | None:
        """What fills the module of a learner that is not called `model`, if a plain weight file was named that fits."""
        if learner in self._origins or self._stage.resumed or has_frozen_base(module):
            return None
        origin = self._named.origin_if_fitting(learner, module)
        return None if origin is None else self._begin_at(learner, origin)

    def of_adapted(self, learner: str, lora: Lora | None, own: str | None = None) -> tuple[FillFunction | None, str]:
        """What fills a learner's network that has adapters, and which part of it: its `base`, its `adapters`, both, or
        none.

        A base is in no checkpoint, so a resumed stage reads it again: from the same file as its start, or from a copy.
        """
        fill = self.of(learner, own)
        if self._stage.resumed:
            part = self.bases.find(learner, self._stage.name)
            return (self.bases.fill(learner) or fill if part else None), part
        if fill is None:
            return None, ""
        assert isinstance(fill, SourceFill)
        check_peft_folder(fill.path, lora)
        self.hashes[learner] = fill.hashes
        if not fill.holds_adapters:
            self.bases.paths[learner] = fill.path if self.can_read_again(learner) else self.bases.copy_of(learner)
            return fill, self.bases.fix(learner, "base")
        # Adapters stand on the base that their stage or run began with.
        if own is None and self._earlier is not None:
            self.bases.find(learner, self._earlier.name)
            base = self.bases.fill(learner)
        else:
            base = self.bases.behind(fill, learner)
        if base is None:
            return fill, self.bases.fix(learner, "adapters")
        return _both(base, fill), self.bases.fix(learner, "both")

    def can_read_again(self, learner: str) -> bool:
        """Whether a learner's first weights can be read again at a later launch: not those of the seed, nor those of
        another run."""
        origin = self._origins.get(learner)
        is_lasting = origin is not None and (origin.path is None or not may_be_removed(origin.path))
        return bool(self._stage.world.share(is_lasting))

    def read_again(self, learner: str, what: str) -> SourceFill:
        """What fills a network with a learner's first weights, for `what` is in no checkpoint."""
        return read_again(self._origins[learner].open, what)

    def fill_without_checkpoint(self, learners: Sequence[Learner], state: Collection[object]) -> None:
        """In a resumed stage: fill learners that are not in the checkpoint, because the task does not name them in its
        state, with the weights that they began with."""
        for learner in learners:
            if learner.name in self._origins and not any(part is learner for part in state):
                self._origins[learner.name].open()(learner.module)

    def has_any(self) -> bool:
        """Whether any learner begins with other weights than those of the seed."""
        return bool(self._origins)

    def is_source_used(self) -> bool:
        """Whether this stage begins with what the user named."""
        return bool(self._named.users)

    def check_source_used(self, is_last: bool) -> None:
        """Warn where this stage does not use what the user named, and refuse if no stage does. Refuse a `start` without
        weights for any learner."""
        if self._earlier and not self._origins:
            raise UserError(
                f"stage {self._stage.name!r} is to start with what stage {self._earlier.name!r} learned, but that has "
                f"no weights of {' or '.join(map(repr, self.descriptions)) or 'any learner'}; it has state of "
                f"{', '.join(self._earlier.learners) or 'no learner'}"
            )
        self._named.check_used(is_last)

    def _begin_at(self, learner: str, origin: Origin) -> FillFunction:
        self._origins[learner] = origin
        self.descriptions[learner] = origin.description
        return fill_placeholder if self._stage.resumed else origin.open()

    def _given_by_recipe(self, learner: str, path: str) -> Origin:
        """The weights that the recipe names for a learner: of the learner of that name, or of the only one there is."""
        named = NamedWeights(run_path(path, self._stage.config.out), self._stage.world)
        if path == named_source(self._stage.config):
            self._named.users.append(learner)
        description = path if self._stage.resumed else named.describe(named.learner_like(learner))
        return Origin(description, lambda: named.fill_for(named.learner_like(learner)), Path(named.name))


class NamedByUser:
    """What the user named by `init_from` or `continue_from`, and which learners of a stage begin with it."""

    def __init__(self, stage: StageInfo) -> None:
        self._stage = stage
        self._source = named_source(stage.config)
        self._named = NamedWeights(self._source, stage.world) if self._source and stage.start is None else None
        self.users: list[str] = []
        self._misfits: list[str] = []

    def origin(self, learner: str) -> Origin | None:
        """For a learner that is in it, or for `model` if it is a plain weight file."""
        named = self._available_to(learner)
        if named is None:
            return None
        is_for_it = self._stage.resumed or learner in ([MODEL] if named.is_file else named.learners)
        return self._use(named, learner) if is_for_it else None

    def origin_if_fitting(self, learner: str, module: nn.Module) -> Origin | None:
        """For a learner of any name whose module a plain weight file fits."""
        named = self._available_to(learner)
        if named is None or not named.is_file or MODEL in self.users:
            return None
        misfit = named.misfit(module)
        if misfit:
            self._misfits.append(f"the learner {learner!r} cannot: {misfit}")
            return None
        return self._use(named, learner)

    def check_used(self, is_last: bool) -> None:
        """Warn if this stage does not use it; refuse if no stage does."""
        if not self._source:
            return
        stage, first_launch = self._stage.name, self._stage.first_launch
        first_launch.fix(_USERS, lambda: list(self.users))
        if self.users or self._is_used_by_another():
            return
        option = "continue_from" if self._stage.config.continue_from else "init_from"
        unused = f"{option}={self._source} is not used by stage {stage!r}, which has {self._what_is_lacking()}"
        has_trained = self._stage.resumed or any(
            "plan" in fixed for name, fixed in first_launch.of_all_stages().items() if name != stage
        )
        if is_last and not has_trained:
            raise UserError(f"{unused}, and neither does any other; leave it out, or name the learner so")
        if self._stage.world.is_main:
            logger.warning("%s", unused)

    def _available_to(self, learner: str) -> NamedWeights | None:
        """It, if this learner may begin with it. The first stage that trains a learner does, and a plain weight file is
        used once. A resumed stage does not open it, but goes by the record."""
        if self._named is None or self._is_used_by_another(learner):
            return None
        if self._stage.resumed:
            return self._named if learner in _users(self._stage.first_launch.of_this_stage()) else None
        if self._is_used_by_another() and (self._named.is_gone or self._named.is_file):
            return None
        return self._named

    def _use(self, named: NamedWeights, learner: str) -> Origin:
        if self.users and not self._stage.resumed and named.is_file:
            raise UserError(
                f"{named.name} has the weights of one network, and they may be for learner {self.users[0]!r} or for "
                f"{learner!r}; call the right one {MODEL!r} and make it first, or use bench.learner(init_from=...)"
            )
        self.users.append(learner)
        description = named.name if self._stage.resumed else named.describe(learner)
        return Origin(description, lambda: named.fill_for(learner), Path(named.name))

    def _is_used_by_another(self, learner: str | None = None) -> bool:
        """Whether an earlier stage that trains began with it: for this learner, or for any."""
        stages = self._stage.first_launch.of_all_stages().items()
        others = [_users(fixed) for name, fixed in stages if name != self._stage.name and "plan" in fixed]
        return any(learner in users if learner else users for users in others)

    def _what_is_lacking(self) -> str:
        names = [MODEL]
        if self._named is not None and not self._stage.resumed and not self._named.is_file:
            names = self._named.learners or names
        misfit = f" ({self._misfits[0]})" if self._misfits else ""
        return f"no learner named {listed([repr(name) for name in names], 'or')} to begin with it{misfit}"


def _users(fixed: Mapping[str, Json]) -> list[str]:
    """The learners that began with what the user named, in a stage of which this is fixed."""
    return list(fixed.get(_USERS, ()))


class EarlierStage:
    """The stage of this run whose weights a stage starts with."""

    def __init__(self, stage: StageInfo, start: str) -> None:
        """`start` is its name, or `NAME:best` or `NAME:last`."""
        self._stage = stage
        self.name, _, self._which = start.partition(":")
        self.learners: list[str] = []
        """Those that its checkpoint has, once one was asked for."""

    def origin(self, learner: str) -> Origin | None:
        """The weights of the learner of that name, if it has one."""
        description = f"stage {self.name!r}"
        if self._stage.resumed:
            return Origin(description, lambda: self._fill(learner))
        world, path = self._stage.world, self._checkpoint
        self.learners = world.share(sorted(learners_of(path)) if world.is_main else None)
        return Origin(f"{description}, {path.name}", lambda: self._fill(learner)) if learner in self.learners else None

    def _fill(self, learner: str) -> SourceFill:
        """Fills from its checkpoint; where not all ranks see it, rank 0 broadcasts the weights."""
        world, is_shared, path = self._stage.world, self._stage.is_shared, self._checkpoint
        is_seen = is_shared or world.is_main
        weights = checkpoint_weights(path, learner, verify=False) if is_seen else None
        return SourceFill(weights, path, world, is_shared)

    @cached_property
    def _checkpoint(self) -> Path:
        """Its last or best checkpoint, verified, the same on all ranks."""
        world, rundir = self._stage.world, self._stage.rundir
        folder, is_shared = rundir.checkpoints(self.name), self._stage.is_shared
        mode = world.share(metric_mode(find_checkpoints(folder)) if world.is_main else None)
        store = Store(folder, world, keep=Retention(mode=mode), shared=is_shared)
        is_best = self._which == "best" or (not self._which and world.share(ended_with_best(rundir, self.name)))
        found = store.best() if is_best else None
        if found is None and self._which != "best":
            found = store.newest()
        if found is None:
            lacks = "no checkpoint with a validation metric" if self._which == "best" else "no checkpoint"
            raise UserError(
                f"stage {self._stage.name!r} starts with what stage {self.name!r} learned, but that has {lacks}; put "
                f"{folder} back, or name a stage that comes before it"
            )
        return found.path


def check_start(stage: str, start: str | None, earlier: Sequence[str]) -> None:
    """Refuse, before anything is trained, a start that names no earlier stage."""
    if start is None:
        return
    name, _, which = start.partition(":")
    if name not in earlier:
        raise UserError(
            f"stage {stage!r} is to start with stage {name!r}, which does not come before it; "
            + (f"name one of {', '.join(earlier)}" if earlier else "no stage does, so leave out its `start`")
        )
    if which not in ("", "last", "best"):
        raise UserError(f"stage {stage!r} starts with the 'last' or 'best' weights of {name!r}, not with {which!r}")


def _both(base: FillFunction, adapters: FillFunction) -> FillFunction:
    def fill(module: nn.Module) -> None:
        base(module)
        adapters(module)

    return fill


@torch.no_grad()
def fill_placeholder(module: nn.Module) -> None:
    """Fills what a checkpoint will restore with NaN, so that a tensor that it misses is noticed; the rest stays."""
    frozen = frozen_names(module) if has_frozen_base(module) else ()
    for tensor in (tensor for name, tensor in module.state_dict().items() if name not in frozen):
        tensor.fill_(float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0)
