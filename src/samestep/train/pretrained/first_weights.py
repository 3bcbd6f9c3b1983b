"""Where a stage's learners get their first weights from: an earlier stage, what the user named, or the run's seed.

`init_from` and `continue_from` are for the first learner called `model`, in whatever stage that is, and for no other: a
later stage begins with the weights of an earlier one if it names it (`Stage(start="align")`), else from the seed.

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
from samestep.checkpoint.weight_sources import CheckpointWeights, part_names
from samestep.core.errors import UserError
from samestep.core.records import Json
from samestep.core.rundir import RunDir
from samestep.parallel.build import FillFunction
from samestep.train.config import named_source
from samestep.train.learner.learner import Learner
from samestep.train.learner.lora import Lora, frozen_names, has_adapters
from samestep.train.loop import Progress
from samestep.train.pretrained.adapter_weights import check_peft_folder
from samestep.train.pretrained.open_weights import SourceFill, is_run, open_weights, read_extra
from samestep.world.world import World

logger = logging.getLogger(__name__)
MODEL = "model"
"""The learner that `init_from` and `continue_from` are for."""
RUNTIME_STATE = ("progress", "window", "epoch", "random")
"""Names of the runtime's own state in every checkpoint, beside the task's."""
_USED_KEY = "first_weights"
_PART_KEY = "first_weights_of"
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
        frozen: Callable[[], dict[str, Json]],
        freeze: Callable[[str, Callable[[], Json]], Json],
    ) -> None:
        """`resumed`: the stage has a checkpoint, with which all weights come. `shared`: all ranks see the run's folder.
        `frozen` is what the first launch fixed for all stages, and `freeze` fixes something for this one."""
        self._config, self._world, self._rundir, self._stage = config, world, rundir, stage
        self._start, self._resumed, self._shared = start, resumed, shared
        self._frozen, self._freeze = frozen, freeze
        self._available: list[str] = []
        self._fills: dict[str, Callable[[], SourceFill]] = {}
        self.descriptions: dict[str, str] = {}
        """By learner, where its weights come from, as text."""
        self.hashes: dict[str, Mapping[str, str]] = {}
        """By learner with adapters, the hashes of what the run that trained these used without saving it."""

    def of(self, learner: str) -> FillFunction | None:
        """What fills a learner's module; None: it keeps what it was built with."""
        found = self._of_named(learner) if self._start is None else self._of_stage(learner, self._start)
        if found is None:
            self.descriptions[learner] = f"drawn from seed {self._config.seed}"
            return None
        self._fills[learner] = found
        return fill_placeholder if self._resumed else found()

    def of_adapted(self, learner: str, lora: Lora | None) -> tuple[FillFunction | None, str]:
        """What fills a learner's network that has adapters, and which part of it: its `base`, its `adapters`, or none.

        A base is in no checkpoint, so a resumed stage reads it again.
        """
        fill, key = self.of(learner), f"{_PART_KEY}/{learner}"
        if self._resumed:
            part = self._frozen().get(self._stage, {}).get(key, "")
            if part == "base":
                return self.read_again(learner, f"the base of learner {learner!r}"), part
            return (fill if part else None), part
        if fill is None:
            return None, ""
        assert isinstance(fill, SourceFill)
        part = "adapters" if fill.holds_adapters else "base"
        check_peft_folder(fill.path, lora)
        self.hashes[learner] = fill.hashes
        return fill, self._freeze(key, lambda: part)

    def can_read_again(self, learner: str) -> bool:
        """Whether a learner's first weights can be read again at a later launch: not those of the seed, nor those of a
        run, which may go on and remove the checkpoint."""
        source = named_source(self._config)
        is_lasting = self._start is not None or not is_run(Path(str(source)))
        return learner in self._fills and bool(self._world.share(is_lasting))

    def read_again(self, learner: str, what: str) -> SourceFill:
        """What fills a network with a learner's first weights, for `what` is in no checkpoint."""
        try:
            return self._fills[learner]()
        except UserError as error:
            raise UserError(
                f"{what} is in no checkpoint and is read again at every start, but that fails: {error}"
            ) from None

    def fill_without_checkpoint(self, learners: Sequence[Learner], state: Collection[object]) -> None:
        """In a resumed stage: fill learners that are not in the checkpoint, because the task does not name them in its
        state, with the weights that they began with."""
        for learner in learners:
            if learner.name in self._fills and not any(part is learner for part in state):
                with learner.inference() as module:
                    self._fills[learner.name]()(module)

    def is_source_used(self) -> bool:
        """Whether this stage begins with what the user named."""
        return self._start is None and MODEL in self._fills

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
        if not source or self.is_source_used() or self._is_used_by_another():
            return
        self._freeze(_USED_KEY, lambda: None)
        option = "continue_from" if self._config.continue_from else "init_from"
        unused = (
            f"{option}={source} is not used by stage {stage!r}, which has no learner named {MODEL!r} to begin with it"
        )
        has_trained = self._resumed or any("plan" in fixed for name, fixed in self._frozen().items() if name != stage)
        if is_last and not has_trained:
            raise UserError(f"{unused}, and neither does any other; leave it out, or name the learner so")
        if self._world.is_main:
            logger.warning("%s", unused)

    def _of_named(self, learner: str) -> Callable[[], SourceFill] | None:
        source = named_source(self._config)
        if not source or learner != MODEL or self._is_used_by_another():
            return None
        self._freeze(_USED_KEY, lambda: source)
        self.descriptions[learner] = source

        def open_source() -> SourceFill:
            return SourceFill(open_weights(Path(source), learner), Path(source), self._world)

        return open_source

    def _is_used_by_another(self) -> bool:
        """Whether an earlier stage that trains began with it; in runs of older versions it always did."""
        others = (fixed for stage, fixed in self._frozen().items() if stage != self._stage)
        return any("plan" in fixed and fixed.get(_USED_KEY, True) for fixed in others)

    def _of_stage(self, learner: str, start: str) -> Callable[[], SourceFill] | None:
        stage, _, which = start.partition(":")
        self.descriptions[learner] = f"stage {stage!r}"
        if self._resumed:
            return lambda: self._stage_fill(self._checkpoint(stage, which), learner)
        path = self._checkpoint(stage, which)
        known = self._world.share(sorted(part_names(path)) if self._world.is_main else None)
        self._available = [part for part in known if part not in RUNTIME_STATE]
        if learner not in known:
            return None
        self.descriptions[learner] += f", {path.name}"
        return lambda: self._stage_fill(path, learner)

    def _stage_fill(self, path: Path, learner: str) -> SourceFill:
        """Fills from the checkpoint of an earlier stage; where not all ranks see it, rank 0 broadcasts the weights."""
        weights = (
            CheckpointWeights(path, f"{learner}/model", verify=False) if self._shared or self._world.is_main else None
        )
        return SourceFill(weights, path, self._world, self._shared)

    def _checkpoint(self, stage: str, which: str) -> Path:
        """The last or the best checkpoint of an earlier stage, verified, the same on all ranks."""
        folder = self._rundir.checkpoints(stage)
        mode = self._world.share(_mode(folder) if self._world.is_main else None)
        store = Store(folder, self._world, keep=Retention(mode=mode), shared=self._shared)
        found = store.best() if which == "best" else store.newest()
        if found is None:
            lacks = "no checkpoint with a validation metric" if which == "best" else "no checkpoint"
            raise UserError(
                f"stage {self._stage!r} starts with what stage {stage!r} learned, but that has {lacks}; put "
                f"{folder} back, or name a stage that comes before it"
            )
        return found.path


def _mode(folder: Path) -> str:
    modes = (found.about.get("figure_mode") for found in find_checkpoints(folder))
    return next((mode for mode in modes if mode), "min")


@torch.no_grad()
def fill_placeholder(module: nn.Module) -> None:
    """Fills what a checkpoint will restore with NaN, so that a tensor that it misses is noticed; the rest stays."""
    frozen = frozen_names(module) if has_adapters(module) else ()
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
            progress.step = extra[name]
            return True
    if isinstance(extra.get("epoch"), int):
        progress.step = extra["epoch"] * progress.steps_per_epoch
        return True
    return False


def _load_optimizer(path: Path, learner: Learner, state: Mapping[str, Any]) -> None:
    try:
        learner.load_torch_optimizer(state)
    except (ValueError, KeyError, RuntimeError, AssertionError) as error:
        raise UserError(
            f"the optimizer state in {path} does not fit ({error}); use init_from={path} for its weights only"
        ) from None
