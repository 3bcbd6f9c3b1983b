"""Where a stage's learners get their first weights from: an earlier stage, what the user named, or the run's seed.

`init_from=RUN` gives its weights to every learner that the run has, too, each in the first stage that trains it. A
plain weight file names no learner: it goes to `model`, or to the only learner that it fits. A later stage begins with
the weights of an earlier one if it names it (`Stage(start="align")`), else from the seed. A learner that the recipe
gives weights of its own (`bench.learner(init_from=...)`) takes those and no others.

`continue_from` names a plain weight file of another program. `continue_from_file` loads its optimizer state and step,
and warns about what it lacks.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samestep.checkpoint.manifest import find_checkpoints
from samestep.checkpoint.retention import Retention
from samestep.checkpoint.store import Store
from samestep.core.config import listed
from samestep.core.errors import UserError
from samestep.core.records import Json
from samestep.core.rundir import RunDir
from samestep.parallel.build import FillFunction
from samestep.train.learner.learner import Learner
from samestep.train.learner.lora import Lora, frozen_names, has_frozen_base
from samestep.train.record.config import named_source
from samestep.train.record.first_launch import FirstLaunch
from samestep.train.record.progress import Progress
from samestep.train.record.run_record import run_path
from samestep.train.weights.adapter_weights import check_peft_folder
from samestep.train.weights.bases import Bases
from samestep.train.weights.named_weights import NamedWeights
from samestep.train.weights.open_weights import (
    SourceFill,
    checkpoint_weights,
    may_be_removed,
    read_again,
    read_extra,
)
from samestep.train.weights.run_checkpoints import MODEL, ended_with_best, learners_of, metric_mode
from samestep.world.world import World

logger = logging.getLogger(__name__)
_USERS = "first_weights"
"""In first_launch.json: the learners of a stage that began with what the user named."""
"""What is fixed of a stage: what the user named, if the stage uses it, and the learners that begin with it."""
_OPTIMIZER_KEYS = ("optimizer_state_dict", "optimizer")


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


class FirstWeights:
    """The first weights of one stage."""

    def __init__(
        self,
        config: Any,
        world: World,
        rundir: RunDir,
        stage: str,
        *,
        start: str | None,
        resumed: bool,
        shared: bool,
        first_launch: FirstLaunch,
    ) -> None:
        """`resumed`: the stage has a checkpoint, with which all weights come. `shared`: all ranks see the run's folder.
        `first_launch` has what the first launch fixed."""
        self._config, self._world, self._rundir, self._stage = config, world, rundir, stage
        self._start, self._resumed, self._shared = start, resumed, shared
        self._first_launch = first_launch
        source = named_source(config)
        self._named = NamedWeights(Path(source), world) if source and start is None else None
        self._users: list[str] = []
        self._misfits: list[str] = []
        self._available: list[str] = []
        self._paths: dict[str, Path] = {}
        self._fills: dict[str, Callable[[], SourceFill]] = {}
        self.descriptions: dict[str, str] = {}
        """By learner, where its weights come from, as text."""
        self.hashes: dict[str, Mapping[str, str]] = {}
        """By learner with a frozen base, the hashes of what the run that trained its first weights used without saving
        it."""
        self.bases = Bases(world, rundir, stage, shared, first_launch)

    def of(self, learner: str, own: str | None = None) -> FillFunction | None:
        """What fills a learner's module; None: it keeps what it was built with. `own` is what the recipe gives it."""
        found = self._find(learner, own)
        if found is None:
            self.descriptions[learner] = f"drawn from seed {self._config.seed}"
            return None
        return self._begin_with(learner, found)

    def of_trained(self, learner: str, own: str | None = None) -> FillFunction | None:
        """What fills the trained part of a learner's network that brings its frozen base; None: it has its values."""
        fill = self.of(learner, own)
        if isinstance(fill, SourceFill):
            self.hashes[learner] = fill.hashes
        return fill

    def of_fitting(self, learner: str, module: nn.Module) -> FillFunction | None:
        """What fills the module of a learner that is not called `model`, if a plain weight file was named that fits."""
        is_settled = learner in self._fills or self._resumed or has_frozen_base(module)
        named = None if is_settled else self._named_for(learner)
        if named is None or not named.is_file or MODEL in self._users:
            return None
        misfit = named.misfit(module)
        if misfit:
            self._misfits.append(f"the learner {learner!r} cannot: {misfit}")
            return None
        return self._begin_with(learner, self._use(named, learner))

    def of_adapted(self, learner: str, lora: Lora | None, own: str | None = None) -> tuple[FillFunction | None, str]:
        """What fills a learner's network that has adapters, and which part of it: its `base`, its `adapters`, both, or
        none.

        A base is in no checkpoint, so a resumed stage reads it again: from the very file of its start, or from a copy.
        """
        fill = self.of(learner, own)
        if self._resumed:
            part = self.bases.find(learner, self._stage)
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
        if own is None and self._start is not None:
            self.bases.find(learner, self._start.partition(":")[0])
            base = self.bases.fill(learner)
        else:
            base = self.bases.behind(fill, learner)
        if base is None:
            return fill, self.bases.fix(learner, "adapters")
        return _both(base, fill), self.bases.fix(learner, "both")

    def can_read_again(self, learner: str) -> bool:
        """Whether a learner's first weights can be read again at a later launch: not those of the seed, nor those of
        another run."""
        is_lasting = learner not in self._paths or not may_be_removed(self._paths[learner])
        return learner in self._fills and bool(self._world.share(is_lasting))

    def read_again(self, learner: str, what: str) -> SourceFill:
        """What fills a network with a learner's first weights, for `what` is in no checkpoint."""
        return read_again(self._fills[learner], what)

    def fill_without_checkpoint(self, learners: Sequence[Learner], state: Collection[object]) -> None:
        """In a resumed stage: fill learners that are not in the checkpoint, because the task does not name them in its
        state, with the weights that they began with."""
        for learner in learners:
            if learner.name in self._fills and not any(part is learner for part in state):
                self._fills[learner.name]()(learner.module)

    def has_any(self) -> bool:
        """Whether any learner begins with other weights than those of the seed."""
        return bool(self._fills)

    def is_source_used(self) -> bool:
        """Whether this stage begins with what the user named."""
        return bool(self._users)

    def check_source_used(self, stage: str, is_last: bool) -> None:
        """Warn where this stage does not use what the user named, and refuse if no stage does. Refuse a `start` without
        weights for any learner."""
        if self._start is not None and not self._fills:
            raise UserError(
                f"stage {stage!r} is to start with what stage {self._start.partition(':')[0]!r} learned, but that has "
                f"no weights of {' or '.join(map(repr, self.descriptions)) or 'any learner'}; it has state of "
                f"{', '.join(self._available) or 'no learner'}"
            )
        source = named_source(self._config)
        if not source:
            return
        self._first_launch.fix(_USERS, lambda: list(self._users))
        if self._users or self._is_used_by_another():
            return
        option = "continue_from" if self._config.continue_from else "init_from"
        unused = f"{option}={source} is not used by stage {stage!r}, which has {self._what_is_lacking()}"
        has_trained = self._resumed or any(
            "plan" in fixed for name, fixed in self._first_launch.of_all_stages().items() if name != stage
        )
        if is_last and not has_trained:
            raise UserError(f"{unused}, and neither does any other; leave it out, or name the learner so")
        if self._world.is_main:
            logger.warning("%s", unused)

    def _what_is_lacking(self) -> str:
        names = [MODEL]
        if self._named is not None and not self._resumed and not self._named.is_file:
            names = self._named.learners or names
        misfit = f" ({self._misfits[0]})" if self._misfits else ""
        return f"no learner named {listed([repr(name) for name in names], 'or')} to begin with it{misfit}"

    def _find(self, learner: str, own: str | None) -> Callable[[], SourceFill] | None:
        if own is not None:
            return self._of_path(learner, own)
        return self._of_named(learner) if self._start is None else self._of_stage(learner, self._start)

    def _begin_with(self, learner: str, found: Callable[[], SourceFill]) -> FillFunction:
        self._fills[learner] = found
        return fill_placeholder if self._resumed else found()

    def _of_path(self, learner: str, path: str) -> Callable[[], SourceFill]:
        """The weights that the recipe names for a learner: of the learner of that name, or of the only one there is."""
        named = NamedWeights(Path(run_path(path, self._config.out)), self._world)
        if path == named_source(self._config):
            self._users.append(learner)
        self._paths[learner] = named.path
        self.descriptions[learner] = path if self._resumed else named.describe(named.learner_like(learner))
        return lambda: named.fill_for(named.learner_like(learner))

    def _of_named(self, learner: str) -> Callable[[], SourceFill] | None:
        named = self._named_for(learner)
        if named is None:
            return None
        is_for_it = self._resumed or learner in ([MODEL] if named.is_file else named.learners)
        return self._use(named, learner) if is_for_it else None

    def _named_for(self, learner: str) -> NamedWeights | None:
        """What the user named, if this learner may begin with it. The first stage that trains a learner does, and a
        plain weight file is used once. A resumed stage does not open it, but goes by the record."""
        if self._named is None or self._is_used_by_another(learner):
            return None
        if self._resumed:
            return self._named if learner in _users(self._first_launch.of_all_stages().get(self._stage, {})) else None
        if self._is_used_by_another() and (self._named.is_gone or self._named.is_file):
            return None
        return self._named

    def _use(self, named: NamedWeights, learner: str) -> Callable[[], SourceFill]:
        if self._users and not self._resumed and named.is_file:
            raise UserError(
                f"{named.path} has the weights of one network, and they may be for learner {self._users[0]!r} or for "
                f"{learner!r}; call the right one {MODEL!r} and make it first, or use bench.learner(init_from=...)"
            )
        self._users.append(learner)
        self._paths[learner] = named.path
        self.descriptions[learner] = str(named.path) if self._resumed else named.describe(learner)
        return lambda: named.fill_for(learner)

    def _is_used_by_another(self, learner: str | None = None) -> bool:
        """Whether an earlier stage that trains began with it: for this learner, or for any."""
        others = (
            fixed
            for stage, fixed in self._first_launch.of_all_stages().items()
            if stage != self._stage and "plan" in fixed
        )
        return any(learner in _users(fixed) if learner else _users(fixed) for fixed in others)

    def _of_stage(self, learner: str, start: str) -> Callable[[], SourceFill] | None:
        stage, _, which = start.partition(":")
        self.descriptions[learner] = f"stage {stage!r}"
        if self._resumed:
            return lambda: self._stage_fill(self._checkpoint(stage, which), learner)
        path = self._checkpoint(stage, which)
        self._available = self._world.share(sorted(learners_of(path)) if self._world.is_main else None)
        if learner not in self._available:
            return None
        self.descriptions[learner] += f", {path.name}"
        return lambda: self._stage_fill(path, learner)

    def _stage_fill(self, path: Path, learner: str) -> SourceFill:
        """Fills from the checkpoint of an earlier stage; where not all ranks see it, rank 0 broadcasts the weights."""
        is_seen = self._shared or self._world.is_main
        weights = checkpoint_weights(path, learner, verify=False) if is_seen else None
        return SourceFill(weights, path, self._world, self._shared)

    def _checkpoint(self, stage: str, which: str) -> Path:
        """The last or the best checkpoint of an earlier stage, verified, the same on all ranks."""
        folder = self._rundir.checkpoints(stage)
        mode = self._world.share(metric_mode(find_checkpoints(folder)) if self._world.is_main else None)
        store = Store(folder, self._world, keep=Retention(mode=mode), shared=self._shared)
        is_best = which == "best" or (not which and self._world.share(ended_with_best(self._rundir, stage)))
        found = store.best() if is_best else None
        if found is None and which != "best":
            found = store.newest()
        if found is None:
            lacks = "no checkpoint with a validation metric" if which == "best" else "no checkpoint"
            raise UserError(
                f"stage {self._stage!r} starts with what stage {stage!r} learned, but that has {lacks}; put "
                f"{folder} back, or name a stage that comes before it"
            )
        return found.path


def _users(fixed: Mapping[str, Json]) -> list[str]:
    """The learners that began with what the user named, in a stage of which this is fixed."""
    return list(fixed.get(_USERS, ()))


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


def continue_from_file(path: Path, learners: list[Learner], progress: Progress) -> None:
    """Load the optimizer state and the step of `path`; its weights are in the learner already."""
    extra = read_extra(path)
    missing = [] if _load_step(extra, progress) else ["the step (starting at 0)"]
    optimizer = next((extra[name] for name in _OPTIMIZER_KEYS if isinstance(extra.get(name), Mapping)), None)
    if optimizer is None or len(learners) != 1:
        missing.append("the optimizer's state (starting fresh)")
    else:
        _load_optimizer(path, learners[0], optimizer)
    for learner in learners:
        learner.updates = progress.step  # the learning rate goes on from there, with or without moments
    missing.append("the random state (starting fresh)")
    logger.warning("continuing from %s, which does not hold %s", path, ", ".join(missing))


def _load_step(extra: Mapping[str, Any], progress: Progress) -> bool:
    """Whether the file has a step, or a number of completed epochs."""
    for name in ("step", "global_step"):
        if isinstance(extra.get(name), int):
            progress.step = progress.current = extra[name]
            return True
    if isinstance(extra.get("epoch"), int):
        progress.step = progress.current = extra["epoch"] * progress.steps_per_epoch
        return True
    return False


def _load_optimizer(path: Path, learner: Learner, state: Mapping[str, Any]) -> None:
    try:
        learner.load_torch_optimizer(state)
    except (ValueError, KeyError, RuntimeError, AssertionError) as error:
        raise UserError(
            f"the optimizer state in {path} does not fit ({error}); use init_from={path} for its weights only"
        ) from None
