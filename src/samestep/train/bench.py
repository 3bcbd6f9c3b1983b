"""The bench: what a stage builds its task with. It has the world, the configuration and the run directory.

def build(bench):
    return Fit(bench.learner(Net()), bench.feed(train_rows), loss, validation=bench.evaluation_feed(val_rows))
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from samestep.core.errors import UserError
from samestep.core.records import Json, read_json, write_json
from samestep.core.rundir import RunDir
from samestep.data.feed import Feed
from samestep.data.fingerprint import ReadOptions
from samestep.data.loading import Rows, RowWeights
from samestep.data.order import VALIDATION_EPOCH, Order, Sequential, Shuffled
from samestep.data.reordered import Reordered
from samestep.parallel.build import FillFunction, build_uninitialized
from samestep.parallel.wrap import wrap
from samestep.train.config import Config
from samestep.train.hooks.evidence import EvidenceRecorder
from samestep.train.learner.draws import Draws
from samestep.train.learner.frozen import Frozen
from samestep.train.learner.initialization import build_fresh
from samestep.train.learner.learner import COMPUTE_DTYPES, ROUNDING_SCALE, Learner
from samestep.train.learner.lora import Lora, has_adapters, to_type
from samestep.train.learner.optimizer import OptimSettings
from samestep.train.logging.console import Screen
from samestep.train.loop import Progress
from samestep.train.plan import Plan
from samestep.train.pretrained.adapter_weights import build_adapted, refuse_built_adapters
from samestep.train.pretrained.first_weights import FirstWeights
from samestep.train.pretrained.frozen_networks import FrozenNetworks
from samestep.train.session.data_check import FeedName, check_data
from samestep.world.world import World

logger = logging.getLogger(__name__)
Rate = Callable[[int], float]
"""The learning rate as a function of the loop's step."""


@dataclass
class Bench:
    """Everything a stage may build with."""

    world: World
    config: Any
    rundir: RunDir
    stage: str
    screen: Screen
    unused: Sequence[str] = ()
    """Glob patterns of parameters that get no gradient, as the recipe declares."""
    recorder: EvidenceRecorder | None = None
    start: str | None = None
    """The earlier stage whose weights the learners begin with."""
    unit: str = "rows"
    """The counted weight that speed is shown in."""
    resumed: bool = False
    """Whether this stage has a checkpoint, which will restore all its state once it is built."""
    shared: bool = True
    """Whether all ranks see the run directory."""
    progress: Progress = field(default_factory=Progress)
    """How far the stage has come; learning rates follow its step."""
    learners: list[Learner] = field(default_factory=list)
    feeds: list[Feed] = field(default_factory=list)
    given_rates: dict[str, Rate] = field(default_factory=dict)
    """By learner, the learning rates that the recipe gave."""
    _plan: Plan | None = None
    is_built: bool = False
    """Whether the stage's task is built; feeds that it makes later are not checked."""
    _checked: list[str] = field(default_factory=list)
    """The purposes of the feeds whose data was compared with that of the first launch."""

    def __post_init__(self) -> None:
        self.first_weights = FirstWeights(
            self.config,
            self.world,
            self.rundir,
            self.stage,
            start=self.start,
            resumed=self.resumed,
            shared=self.shared,
            frozen=self._frozen,
            freeze=self._freeze,
        )
        self.frozen_networks = FrozenNetworks(
            self.config,
            self.world,
            self.rundir.artifacts(self.stage),
            first_weights=self.first_weights,
            resumed=self.resumed,
            shared=self.shared,
            freeze=self._freeze,
        )

    def plan(self, samples: int) -> Plan:
        """The stage's numbers, for the number of samples of its first training feed: as frozen by the first launch, or
        frozen now."""
        if self._plan is None:
            made = self._freeze("plan", lambda: Plan.make(self.config, self.world.dp_size, samples).to_json())
            self._plan = Plan(**made)
            if self._plan.samples != samples:
                raise UserError(
                    f"this run was started on {self._plan.samples} training samples but the data now has {samples}; "
                    "restore the data, or start a new run (init_from=... keeps the weights)"
                )
        return self._plan

    def feed(self, rows: Rows, *, order: Order | None = None, count: RowWeights | None = None) -> Feed:
        """Training data in an order that any world size shares; shuffled again in each epoch unless an order is given.

        The first one fixes how long the stage is. Others have the same global batch and run through their own epochs.
        `count` gives each row's weight in terms of the loss, or in the stage's unit.
        """
        plan = self.plan(len(rows))
        self._check_data(rows, "training")
        order = order or Shuffled(len(rows), plan.global_batch, self.config.seed)
        return self._feed(rows, order, plan.steps, count)

    def evaluation_feed(self, rows: Rows, *, count: RowWeights | None = None, batch: int | None = None) -> Feed:
        """Every row exactly once, in order, with fixed noise: for validation and for dumps."""
        if len(rows) < 1:
            raise UserError("the validation data is empty: there is no row to validate on")
        self._check_data(rows, "validation")
        order = Sequential(len(rows), batch or self._once_batch(), epoch=VALIDATION_EPOCH)
        return self._feed(rows, order, order.steps_per_epoch, count, track=partial(self.screen.track, "validate"))

    rows_once = evaluation_feed  # the name that recipes of earlier versions use

    def learner(
        self,
        module: nn.Module | Callable[[], nn.Module],
        *,
        name: str = "model",
        rate: Rate | None = None,
        lora: Lora | None = None,
    ) -> Learner:
        """A learner of `module`, or of the one that `module` builds when it is called.

        The latter is for large networks. One that begins with the weights of a file, or offers `init_parameter` (see
        initialization.py), is then built without memory, and each device fills only its own shard. The function may be
        called twice. `rate` gives the learning rate of each step (default: as planned). `lora` freezes the network and
        trains adapters in it (see lora.py).
        """
        config: Config = self.config
        if rate is not None:
            self.given_rates[name] = rate
        given = module
        module, initial, begins_at_base = self._built(given, name, lora)
        module = self._prepared(module)
        if config.compile:
            module.compile()
        compute = COMPUTE_DTYPES.get(config.distributed.mixed_precision)
        learner = Learner(
            wrap(module, self.world, config.distributed.strategy, compute, initial),
            self.world,
            rate or self._planned_rate,
            OptimSettings.of(config),
            name=name,
            mixed_precision=config.distributed.mixed_precision,
            max_bad_steps=config.max_bad_steps,
            recorder=self.recorder,
            step=partial(getattr, self.progress, "step"),
            seed=config.seed,
            rounding_scale=ROUNDING_SCALE if config.evidence_rounding else 1.0,
        )
        self.learners.append(learner)
        self.frozen_networks.add_learner(learner, given, begins_at_base, self.first_weights.hashes.get(name, {}))
        return learner

    def frozen(
        self,
        network: nn.Module | Callable[[], nn.Module] | Learner,
        *,
        name: str = "reference",
        source: str | Path | None = None,
        shard: bool = False,
        dtype: str | None = None,
    ) -> Frozen:
        """A network that is not trained: a module, the one that a function builds, or a copy of a learner's first
        weights. `source` is a run, checkpoint or weight file to fill it from; `shard` shards it over the ranks; `dtype`
        is the type of its weights (default: as it is). It is in no checkpoint, and a resume refuses another one."""
        return self.frozen_networks.build(network, name=name, source=source, sharded=shard, dtype=dtype)

    def draws(self, purpose: str) -> Draws:
        """Keyed sampling of tokens inside the stage, for a named purpose."""
        return Draws(purpose, self.config.seed, self.recorder)

    @property
    def known_plan(self) -> Plan | None:
        """The plan, once a training feed made one."""
        return self._plan

    @property
    def steps_per_epoch(self) -> int | None:
        """As planned; None for a stage without training data."""
        return self._plan.steps_per_epoch if self._plan else None

    def artifact(self, name: str, stage: str | None = None) -> Path:
        """The path of an artifact of this stage, or of an earlier one."""
        return self.rundir.artifacts(stage or self.stage) / name

    def _planned_rate(self, step: int) -> float:
        assert self._plan is not None, "make the training feed before the first update: it fixes the plan"
        return self._plan.schedule(self.config)(step)

    def _built(
        self, given: nn.Module | Callable[[], nn.Module], name: str, lora: Lora | None
    ) -> tuple[nn.Module, FillFunction | None, bool]:
        """A learner's network, what fills it, and whether it begins as its base alone, without effect of adapters."""
        if lora is not None or has_adapters(given):
            initial, part = self.first_weights.of_adapted(name, lora)
            module, initial = build_adapted(
                given, lora, learner=name, seed=self.config.seed, initial=initial, initial_is_base=part == "base"
            )
            return module, initial, lora is not None and part != "adapters"
        initial = self.first_weights.of(name)
        if isinstance(given, nn.Module):
            return given, initial, False
        module, initial = (
            (build_uninitialized(given), initial) if initial else build_fresh(given, self.config.seed, name)
        )
        refuse_built_adapters(module)
        return module, initial, False

    def _prepared(self, module: nn.Module) -> nn.Module:
        """The module in its type, with parameters frozen that are not trained."""
        module = to_type(module, getattr(torch, self.config.distributed.dtype))
        for name, parameter in module.named_parameters():
            if any(fnmatch(name, pattern) for pattern in self.unused):
                parameter.requires_grad_(False)  # before wrapping: DDP waits for the gradient of every other one
        return module

    def _feed(self, rows: Rows, order: Order, length: int, count: RowWeights | None, track: Any = None) -> Feed:
        if self.config.evidence_rounding:
            # Not without a learner: such a stage may write its rows in the order in which they come.
            order = Reordered(order, self.world.dp_size, self.config.batch_size, active=lambda: bool(self.learners))
        feed = Feed(
            rows,
            order,
            self.world,
            micro_rows=self.config.batch_size,
            length=length,
            count=count,
            workers=self.config.num_workers,
            prefetch=self.config.prefetch,
            unit=self.unit,
            track=track,
        )
        self.feeds.append(feed)
        return feed

    def _check_data(self, rows: Rows, purpose: Literal["training", "validation"]) -> None:
        """Refuse a resume on other data than the run was started on."""
        if self.is_built:
            return
        name = FeedName(self.stage, purpose, self._checked.count(purpose))
        self._checked.append(purpose)
        reading = ReadOptions(self.config.seed, self.config.num_workers > 0, self.world.activity.made_progress)
        check_data(rows, name, self.rundir, self.world, reading)

    def _once_batch(self) -> int:
        """Frozen too: a dump that is resumed at another world size must count its steps as before. The key on disk is
        that of earlier versions."""
        return self._freeze("rows_once", lambda: self.config.batch_size * self.world.dp_size)

    def _freeze(self, what: str, make: Callable[[], Json]) -> Json:
        """What the first launch fixed for this stage, or what it fixes now."""
        known = self._frozen()
        mine = known.setdefault(self.stage, {})
        if what not in mine:
            mine[what] = make()
            if self.world.is_main:
                write_json(self.rundir.frozen, known)
        return mine[what]

    def _frozen(self) -> dict[str, Json]:
        """What the first launch fixed, by stage."""
        return self.world.share(read_json(self.rundir.frozen) if self.world.is_main else None) or {}
