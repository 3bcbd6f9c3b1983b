"""The bench: what a stage builds its task from. It knows the world, the configuration and the run directory.

def build(bench):
    return Fit(bench.learner(Net()), bench.feed(train_rows), loss, validation=bench.rows_once(val_rows))
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samestep.core.errors import UserError
from samestep.core.records import Json, read_json, write_json
from samestep.core.rundir import RunDir
from samestep.data.feed import Feed
from samestep.data.loading import Count, Rows
from samestep.data.order import VALIDATION_EPOCH, Order, Sequential, Shuffled
from samestep.data.reordered import Reordered
from samestep.parallel.wrap import Fill, build_blank, wrap
from samestep.train.config import Config
from samestep.train.console import Screen
from samestep.train.draws import Draws
from samestep.train.evidence import Recorder
from samestep.train.learner import COMPUTE, DETOUR, Learner
from samestep.train.optim import OptimSettings
from samestep.train.plan import Plan
from samestep.train.weights import fill, open_weights
from samestep.world.world import World

logger = logging.getLogger(__name__)


@dataclass
class Bench:
    """Everything a stage may build with."""

    world: World
    config: Any
    rundir: RunDir
    stage: str
    screen: Screen
    unused: Sequence[str] = ()
    """Glob patterns of parameters that the recipe declares to be without a gradient."""
    recorder: Recorder | None = None
    learners: list[Learner] = field(default_factory=list)
    feeds: list[Feed] = field(default_factory=list)
    _plan: Plan | None = None

    def plan(self, samples: int) -> Plan:
        """The stage's numbers for data of so many samples: as frozen by the first launch, or frozen now."""
        if self._plan is None:
            made = self._freeze("plan", lambda: Plan.make(self.config, self.world.size, samples).to_json())
            self._plan = Plan(**made)
        if self._plan.samples != samples:
            raise UserError(
                f"this run was started on {self._plan.samples} training samples but the data now has {samples}; "
                "restore the data, or start a new run (init_from=... keeps the weights)"
            )
        return self._plan

    def feed(self, rows: Rows, *, order: Order | None = None, count: Count | None = None) -> Feed:
        """Training data in an order that any world size shares; shuffled anew each epoch unless one is given."""
        plan = self.plan(len(rows))
        order = order or Shuffled(len(rows), plan.global_batch, self.config.seed)
        return self._feed(rows, order, plan.steps, count)

    def rows_once(self, rows: Rows, *, count: Count | None = None, batch: int | None = None) -> Feed:
        """Every row exactly once, in order, with fixed noise: for validation and for dumps."""
        if len(rows) < 1:
            raise UserError("the validation data is empty: there is no row to validate on")
        order = Sequential(len(rows), batch or self._once_batch(), epoch=VALIDATION_EPOCH)
        return self._feed(rows, order, order.steps_per_epoch, count, track=partial(self.screen.track, "validate"))

    def learner(
        self,
        module: nn.Module | Callable[[], nn.Module],
        *,
        name: str = "model",
        rate: Callable[[int], float] | None = None,
    ) -> Learner:
        """A learner of `module`, or of the one that `module` builds when it is called.

        The latter is for large networks: one that begins with the weights of a file is then built without memory, and
        filled on each device, its own part only. `rate` gives the learning rate of each update (default: as planned).
        """
        config: Config = self.config
        initial = self._initial_weights(name)
        module = self._prepared(module, blank=initial is not None)
        if config.compile:
            module.compile()
        compute = COMPUTE.get(config.distributed.mixed_precision)
        learner = Learner(
            wrap(module, self.world, config.distributed.strategy, compute, initial),
            self.world,
            rate or self._planned_rate,
            OptimSettings.of(config),
            name=name,
            mixed_precision=config.distributed.mixed_precision,
            max_bad_steps=config.max_bad_steps,
            recorder=self.recorder,
            detour=DETOUR if config.evidence_rounding else 1.0,
        )
        self.learners.append(learner)
        return learner

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
        """Where this stage, or an earlier one, keeps an artifact."""
        return self.rundir.artifacts(stage or self.stage) / name

    def _planned_rate(self, update: int) -> float:
        assert self._plan is not None, "make the training feed before the first update: it fixes the plan"
        return self._plan.schedule(self.config)(update)

    def _initial_weights(self, name: str) -> Fill | None:
        """What fills the learner's module with the weights that were asked for."""
        source = self.config.continue_from or self.config.init_from
        if not source or name != "model":
            return None
        weights = open_weights(Path(source), name)
        return lambda module: fill(module, weights, f"weights of {source}")

    def _prepared(self, module: nn.Module | Callable[[], nn.Module], blank: bool) -> nn.Module:
        """The module in its type, and without what it does not train."""
        if not isinstance(module, nn.Module):
            module = build_blank(module) if blank else module()
        module = module.to(getattr(torch, self.config.distributed.dtype))
        for name, parameter in module.named_parameters():
            if any(fnmatch(name, pattern) for pattern in self.unused):
                parameter.requires_grad_(False)  # before wrapping: DDP waits for the gradient of every other one
        return module

    def _feed(self, rows: Rows, order: Order, length: int, count: Count | None, track: Any = None) -> Feed:
        if self.config.evidence_rounding:  # a stage without a learner may write its rows down in the order they come in
            order = Reordered(order, self.world.size, self.config.batch_size, active=lambda: bool(self.learners))
        feed = Feed(
            rows,
            order,
            self.world,
            micro_rows=self.config.batch_size,
            length=length,
            count=count,
            workers=self.config.num_workers,
            prefetch=self.config.prefetch,
            track=track,
        )
        self.feeds.append(feed)
        return feed

    def _once_batch(self) -> int:
        """Frozen too: a dump that is resumed at another world size must count its steps as before."""
        return self._freeze("rows_once", lambda: self.config.batch_size * self.world.size)

    def _freeze(self, what: str, make: Callable[[], Json]) -> Json:
        """What the first launch fixed for this stage, or what it fixes now."""
        known = self.world.share(read_json(self.rundir.frozen) if self.world.is_main else None) or {}
        mine = known.setdefault(self.stage, {})
        if what not in mine:
            mine[what] = make()
            if self.world.is_main:
                write_json(self.rundir.frozen, known)
        return mine[what]
