"""What is decided before a learner's first update: the kernel of its attention, and whether its losses are compiled.

On a GPU both are measured with the first micro-batch. Rank 0 decides, and what it decides is fixed for all later
launches of the run, so that a resumed run computes as before.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from samestep.core.records import Json
from samestep.parallel.attention_kernels import attention_kernel, fastest_kernel, recording_attention
from samestep.parallel.compiling import LossCompiler, describe
from samestep.parallel.precision import Function
from samestep.parallel.wrap import Parallel, warm_up
from samestep.train.first_launch import FirstLaunch
from samestep.world.world import World

logger = logging.getLogger(__name__)
Fix = Callable[[str, Callable[[], Json]], Json]
COMPILES_FROM = 180.0
"""Compiling takes up to a minute and saves about a third of the time: it pays where training would take longer."""


@dataclass(frozen=True)
class Choices:
    """What the configuration leaves open, or says."""

    compile: bool | None = False
    """None: where it is faster, if training would take longer than `compiles_from` seconds."""
    attention: str | None = None
    """The name of a kernel; `auto`: the fastest; None: as torch chooses."""
    compiles_from: float = COMPILES_FROM
    compiler: Callable[[], LossCompiler] = LossCompiler
    fix: Fix = lambda what, decide: decide()
    """Gives what an earlier launch decided, or decides it and keeps it."""
    known: Callable[[], Mapping[str, Json]] = dict
    """All that earlier launches decided."""
    steps_left: Callable[[], int] = lambda: 0
    """Steps of the stage that are to come."""
    on_compiling: Callable[[], None] = lambda: None
    """Called when the learner is going to be compiled."""

    @classmethod
    def of(
        cls,
        config: Any,
        world: World,
        first_launch: FirstLaunch,
        steps_left: Callable[[], int],
        on_compiling: Callable[[], None],
    ) -> "Choices":
        """What the configuration of a run says, or leaves open where it can be measured."""
        measures = _measures(config, world)
        return cls(
            compile=config.compile if config.compile is not None or measures else False,
            attention=config.attention if config.attention != "auto" or measures else None,
            fix=first_launch.fix,
            known=first_launch.of_this_stage,
            steps_left=steps_left,
            on_compiling=on_compiling,
        )


def may_compile(config: Any, world: World) -> bool:
    """Whether the losses of a run are compiled, or may be."""
    return _measures(config, world) if config.compile is None else config.compile


def _measures(config: Any, world: World) -> bool:
    """Whether what the configuration leaves open is measured: on a GPU, unless two runs are to be compared."""
    return world.device.type == "cuda" and not config.deterministic and not config.evidence


class Preparation:
    """Prepares the functions that a learner calls in its updates."""

    def __init__(
        self,
        name: str,
        parallel: Parallel,
        world: World,
        choices: Choices,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._name, self._parallel, self._world = name, parallel, world
        self._choices, self._autocast = choices, autocast
        known = choices.known() if choices.compile is None or choices.attention == "auto" else {}
        self._kernel = known.get(f"attention/{name}") if choices.attention == "auto" else choices.attention
        self._has_decided = False
        if choices.compile or (choices.compile is None and known.get(f"compile/{name}")):
            self._compile()

    def attention(self) -> AbstractContextManager[None]:
        """Around calls of the network and their backward passes."""
        return attention_kernel(self._kernel)

    def prepare(self, function: Function, attempt: Callable[[], None], passes: int) -> None:
        """Before an update by `function`. `attempt` makes one pass of it over a micro-batch, which leaves gradients; a
        step has `passes` of them. Collective: every rank calls it alike."""
        if not self._has_decided:
            self._has_decided = True
            if self._choices.attention == "auto":
                self._kernel = self._decide("attention", lambda: self._measured_kernel(attempt))
            if self._choices.compile is None:
                self._decide_compiling(attempt, passes)
        compiler = self._parallel.compiler
        if compiler and compiler.is_new(function):
            self._try_compiling(compiler, attempt)

    def _decide(self, what: str, decide: Callable[[], Json]) -> Json:
        """What the first launch has decided, or what rank 0 decides now; every rank takes part in measuring."""
        return self._choices.fix(f"{what}/{self._name}", lambda: self._world.share(decide()))

    def _measured_kernel(self, attempt: Callable[[], None]) -> str | None:
        compiler, self._parallel.compiler = self._parallel.compiler, None  # or the function would not be new any more
        try:
            with recording_attention() as calls:
                warm_up(self._parallel.inner, attempt)
        finally:
            self._parallel.compiler = compiler
        with self._autocast():
            return fastest_kernel(calls, self._world.device)

    def _decide_compiling(self, attempt: Callable[[], None], passes: int) -> None:
        if self._decide("compile", lambda: self._pays(attempt, passes)):
            self._compile()
        else:
            self._parallel.compiler = None

    def _compile(self) -> None:
        self._parallel.compiler = self._parallel.compiler or self._choices.compiler()
        self._choices.on_compiling()

    def _pays(self, attempt: Callable[[], None], passes: int) -> bool:
        plain = self._seconds(attempt)
        if self._world.share(plain * passes * self._choices.steps_left()) < self._choices.compiles_from:
            return False
        compiler = self._parallel.compiler = self._choices.compiler()
        self._try_compiling(compiler, attempt, is_optional=True)
        if not compiler.enabled:
            return False
        compiled = self._seconds(attempt)
        if self._world.is_main:
            logger.info("learner %r: a micro-batch takes %.4f s as it is, %.4f s compiled", self._name, plain, compiled)
        return compiled < plain

    def _seconds(self, attempt: Callable[[], None]) -> float:
        """Of the faster of two passes."""
        found = []
        for _ in range(2):
            begun = time.perf_counter()
            warm_up(self._parallel.inner, attempt)
            if self._world.device.type == "cuda":
                torch.cuda.synchronize(self._world.device)
            found.append(time.perf_counter() - begun)
        return min(found)

    def _try_compiling(self, compiler: LossCompiler, attempt: Callable[[], None], is_optional: bool = False) -> None:
        """One pass whose results are dropped. Where a rank cannot compile it, all ranks go on without compiling. If
        nobody asked for it, that goes for a lack of memory too."""
        failure = None
        try:
            warm_up(self._parallel.inner, attempt)
        except Exception as error:
            if not is_optional and not isinstance(error, torch._dynamo.exc.TorchDynamoException):
                raise
            failure = describe(error)
        failures = [text for text in self._world.gather(failure or compiler.failure) if text]
        compiler.enabled = not failures
        if failures and self._world.is_main:
            logger.warning("learner %r is not compiled, because torch.compile failed: %s", self._name, failures[0])
