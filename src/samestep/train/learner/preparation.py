"""What is decided before a learner's first update: the kernel of its attention, and whether its losses are compiled or
recorded.

On a GPU all of it is measured with the first micro-batch. Rank 0 decides, and what it decides is fixed for all later
launches of the run, so that a resumed run computes as before.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, NamedTuple

import torch

from samestep.core.json_files import Json
from samestep.parallel.attention_kernels import attention_kernel, fastest_kernel, recording_attention
from samestep.parallel.compiling import LossCompiler, describe
from samestep.parallel.loss_graphs import LossGraphs, is_recordable
from samestep.parallel.precision import Function
from samestep.parallel.wrap import Parallel, warm_up
from samestep.train.learner.batch_norm import has_global_batch_norm
from samestep.train.learner.dropout import has_keyed_dropout
from samestep.train.record.first_launch import FirstLaunch
from samestep.world.memory import is_out_of_memory
from samestep.world.world import World

logger = logging.getLogger(__name__)
Fix = Callable[[str, Callable[[], Json]], Json]
COMPILES_FROM = 180.0
"""Compiling takes up to a minute and saves about a third of the time: it pays where training would take longer."""
_LAUNCH_BOUND = 0.9
"""A pass is bound by the host where starting its kernels takes this share of its time."""
_PASSES_TO_RECORD = 3
"""torch runs a graph once, records it, and replays it from then on."""


class _Times(NamedTuple):
    """Seconds of a pass, until the host has started all of it, and until the device is done."""

    started: float
    done: float


class _Tried(NamedTuple):
    """How a pass was tried, and what it took: forever, if it cannot be compiled so."""

    compiler: LossCompiler | None
    times: _Times


@dataclass(frozen=True)
class Choices:
    """What the configuration leaves open, or says."""

    compile: bool | None = False
    """None: where it is faster, if training would take longer than `compiles_from` seconds."""
    attention: str | None = None
    """The name of a kernel; `auto`: the fastest; None: as torch chooses."""
    compiles_from: float = COMPILES_FROM
    compiler: Callable[[], LossCompiler] = LossCompiler
    recorder: Callable[[Callable[[], None]], LossGraphs] = LossGraphs
    cuda_graphs: bool = False
    """Whether they may be used, where the host takes longer to start kernels than the device to run them."""
    fix: Fix = lambda what, decide: decide()
    """Gives what an earlier launch decided, or decides it and keeps it."""
    known: Callable[[], Mapping[str, Json]] = dict
    """All that earlier launches decided."""
    steps_left: Callable[[], int] = lambda: 0
    """Steps of the stage that are to come."""
    on_compiling: Callable[[], None] = lambda: None
    """Called when the learner is going to be compiled."""
    before_compiling: Callable[[str], None] = lambda what: None
    """Called with what is going to be compiled now, also where that is only tried."""

    @classmethod
    def of(
        cls,
        config: Any,
        world: World,
        first_launch: FirstLaunch,
        steps_left: Callable[[], int],
        on_compiling: Callable[[], None],
        before_compiling: Callable[[str], None],
    ) -> "Choices":
        """What the configuration of a run says, or leaves open where it can be measured."""
        measures = _measures(config, world)
        return cls(
            compile=config.compile if config.compile is not None or measures else False,
            attention=config.attention if config.attention != "auto" or measures else None,
            fix=first_launch.fix,
            known=first_launch.of_this_stage,
            cuda_graphs=measures and config.cuda_graphs,
            steps_left=steps_left,
            on_compiling=on_compiling,
            before_compiling=before_compiling,
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
        # Unlike what torch.compile does with CUDA graphs, a recording leaves the reduction of gradients to DDP.
        # Masks and the rows that count would stay as they were recorded.
        knows_rows = has_keyed_dropout(parallel.inner) or has_global_batch_norm(parallel.inner)
        can_record = is_recordable(parallel.inner) and not knows_rows
        self._may_record_calls = choices.cuda_graphs and parallel.replicated and can_record
        is_open = choices.compile is None or choices.attention == "auto" or self._may_record_calls
        known = choices.known() if is_open else {}
        self._kernel = known.get(f"attention/{name}") if choices.attention == "auto" else choices.attention
        self._has_decided = False
        # DDP and FSDP reduce in hooks; batch norms are computed between two compiled parts.
        self._may_record = choices.cuda_graphs and world.control is None and not has_global_batch_norm(parallel.inner)
        if choices.compile or (choices.compile is None and known.get(f"compile/{name}")):
            self._compile(self._may_record and bool(known.get(f"cuda_graphs/{name}")))
        elif self._may_record_calls and known.get(f"recorded/{name}"):
            self._parallel.compiler = self._new_recorder()

    def attention(self) -> AbstractContextManager[None]:
        """Around calls of the network and their backward passes."""
        return attention_kernel(self._kernel)

    def before_compiling(self, what: str) -> None:
        """Something of the learner is going to be compiled now, which takes long."""
        self._choices.before_compiling(what)

    @property
    def _communicates(self) -> bool:
        """Whether ranks wait for each other in a pass that is tried: DDP leaves its gradients as they are, but sharded
        weights are gathered in it, and statistics of the global batch."""
        inner = self._parallel.inner
        return self._world.size > 1 and (not self._parallel.replicated or has_global_batch_norm(inner))

    @property
    def cuda_graphs(self) -> bool:
        """Whether updates run as CUDA graphs, which write their results to the same memory every time."""
        compiler = self._parallel.compiler
        return compiler is not None and compiler.enabled and compiler.cuda_graphs

    def prepare(self, function: Function, attempt: Callable[[], None], passes: int) -> None:
        """Before an update by `function`. `attempt` makes one pass of it over a micro-batch, which leaves gradients; a
        step has `passes` of them. Collective: every rank calls it alike."""
        if not self._has_decided:
            self._has_decided = True
            if self._choices.attention == "auto":
                self._kernel = self._decide("attention", lambda: self._measured_kernel(attempt))
            if self._choices.compile is None:
                self._decide_compiling(attempt, passes)
            if self._may_record_calls and not isinstance(self._parallel.compiler, LossCompiler):
                self._decide_recording(attempt)
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
            self._compile(bool(self._may_record and self._decide("cuda_graphs", lambda: self.cuda_graphs)))
        else:
            self._parallel.compiler = None

    def _compile(self, cuda_graphs: bool) -> None:
        compiler = self._parallel.compiler
        if compiler is None or compiler.cuda_graphs != cuda_graphs:
            self._parallel.compiler = self._new_compiler(cuda_graphs)
        self._choices.on_compiling()

    def _new_compiler(self, cuda_graphs: bool = False) -> LossCompiler:
        compiler = self._choices.compiler()
        compiler.cuda_graphs = cuda_graphs
        return compiler

    def _decide_recording(self, attempt: Callable[[], None]) -> None:
        if not self._decide("recorded", lambda: self._recording_pays(attempt)):
            self._parallel.compiler = None
        elif self._parallel.compiler is None:
            self._parallel.compiler = self._new_recorder()

    def _new_recorder(self) -> LossGraphs:
        return self._choices.recorder(partial(setattr, self._parallel, "called", True))

    def _recording_pays(self, attempt: Callable[[], None]) -> bool:
        """Whether a pass is faster when it is recorded; leaves the recorder for it."""
        plain = self._times(attempt)
        if not self._is_bound_by_host(plain, attempt):
            return False
        recorder = self._parallel.compiler = self._new_recorder()
        self._try_compiling(recorder, attempt, is_optional=True)
        return recorder.enabled and self._times(attempt).done < plain.done

    def _pays(self, attempt: Callable[[], None], passes: int) -> bool:
        """Whether compiling saves time in all; leaves the compiler for it."""
        plain = _Tried(None, self._times(attempt))
        if self._world.share(plain.times.done * passes * self._choices.steps_left()) < self._choices.compiles_from:
            return False
        tried = [plain, *self._try_compiled(attempt, plain)]
        # By the times of rank 0: a rank whose own say otherwise would compile once more while others begin to update.
        fastest = self._world.share(min(range(len(tried)), key=lambda number: tried[number].times.done))
        self._parallel.compiler = tried[fastest].compiler
        return self._parallel.compiler is not None

    def _try_compiled(self, attempt: Callable[[], None], plain: _Tried) -> Iterator[_Tried]:
        """Passes that are compiled. One with CUDA graphs is tried where the device waits for the host to start its
        kernels, as it is or once it is compiled."""
        if self._may_record and self._is_bound_by_host(plain.times, attempt):
            recorded = self._try(attempt, cuda_graphs=True)
            yield recorded
            if recorded.times.done >= plain.times.done:
                yield self._try(attempt, cuda_graphs=False)
        else:
            compiled = self._try(attempt, cuda_graphs=False)
            yield compiled
            if compiled.compiler and self._may_record and self._is_bound_by_host(compiled.times, attempt):
                yield self._try(attempt, cuda_graphs=True)

    def _try(self, attempt: Callable[[], None], cuda_graphs: bool) -> _Tried:
        compiler = self._parallel.compiler = self._new_compiler(cuda_graphs)
        for _ in range(_PASSES_TO_RECORD if cuda_graphs else 1):
            if compiler.enabled:
                self._try_compiling(compiler, attempt, is_optional=True)
        return _Tried(compiler, self._times(attempt)) if compiler.enabled else _Tried(None, _Times(inf, inf))

    def _is_bound_by_host(self, took: _Times, attempt: Callable[[], None]) -> bool:
        """Whether CUDA graphs may save time; not where a parameter gets no gradient, which would be 0. By the time of
        rank 0: looking for gradients is a pass, in which all ranks take part."""
        if not self._world.share(took.started >= _LAUNCH_BOUND * took.done):
            return False
        return all(self._world.gather(self._gives_all_gradients(attempt)))

    def _gives_all_gradients(self, attempt: Callable[[], None]) -> bool:
        found: list[bool] = []

        def look() -> None:
            attempt()
            found.extend(p.grad is not None for p in self._parallel.inner.parameters() if p.requires_grad)

        warm_up(self._parallel.inner, look)
        return all(found)

    def _times(self, attempt: Callable[[], None]) -> _Times:
        """Of the faster of two passes."""
        found = min((self._time(attempt) for _ in range(2)), key=lambda took: took.done)
        if self._world.is_main:
            compiler = self._parallel.compiler
            how = "as it is" if compiler is None else compiler.how
            logger.info("learner %r: a micro-batch takes %.4f s %s", self._name, found.done, how)
        return found

    def _time(self, attempt: Callable[[], None]) -> _Times:
        begun = time.perf_counter()
        warm_up(self._parallel.inner, attempt)
        started = time.perf_counter() - begun
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        return _Times(started, time.perf_counter() - begun)

    def _try_compiling(
        self, compiler: LossCompiler | LossGraphs, attempt: Callable[[], None], is_optional: bool = False
    ) -> None:
        """One pass whose results are dropped. Where a rank cannot compile it, all ranks go on without compiling. If
        nobody asked for it, that goes for a lack of memory too, unless others wait for this rank inside of the pass."""
        if isinstance(compiler, LossCompiler):  # recording a graph is short
            self.before_compiling("the model")
        failure = None
        try:
            warm_up(self._parallel.inner, attempt)
        except Exception as error:
            if not is_optional and not isinstance(error, torch._dynamo.exc.TorchDynamoException):
                raise
            if is_out_of_memory(error) and self._communicates:
                raise
            failure = describe(error)
        failures = [text for text in self._world.gather(failure or compiler.failure) if text]
        compiler.enabled = not failures
        if failures and self._world.is_main:
            about = self._name, compiler.how, compiler.tool, failures[0]
            logger.warning("learner %r is not %s, because %s failed: %s", *about)
