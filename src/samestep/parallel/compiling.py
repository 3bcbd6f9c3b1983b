"""Compiling what a learner computes: a loss and the network that it calls become one region for torch.compile.

So the head and the loss are fused, where a compiled network alone would write all its outputs to memory first. A part
that cannot be compiled runs as it is and is recorded: all ranks then agree to go on without compiling.
"""

import logging
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, partial
from itertools import product
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn

from samestep.core.compile_caches import HEADERS, HEADERS_OFF
from samestep.parallel.causal_masks import drop_causal_masks
from samestep.parallel.precision import Function, with_cast_weights

logger = logging.getLogger(__name__)
Compiler = Callable[[fx.GraphModule, list[Tensor]], Callable[..., Any]]

# All of a pass is recorded, or nothing: of parts that are not, the results would lie elsewhere every time, and what
# reads them would be recorded again. A graph is recorded for each shape of a batch.
_CUDA_GRAPHS = {
    "config_patches": {
        "triton.cudagraphs": True,
        "triton.cudagraph_skip_dynamic_graphs": False,
        "graph_partition": False,
    }
}
MOST_SHAPES = 32
"""Batches of further shapes are compiled, but not recorded."""


class LossCompiler:
    """Compiles functions on their first call; `failure` says why a part of one could not be compiled."""

    tool = "torch.compile"

    def __init__(self, backend: str | Compiler = "inductor") -> None:
        self.enabled = True
        self.failure: str | None = None
        self.cuda_graphs = False
        """Record the kernels of a call in a CUDA graph, and start them together from then on; set before a call. What
        a call returns is then overwritten by the next one."""
        self._is_inductor = backend == "inductor"
        self._compile: Callable[..., Callable[..., Any]] = torch._dynamo.lookup_backend(backend)
        self._compiled: dict[Hashable, tuple[Function, Function]] = {}
        self._codes: dict[Hashable, CodeType] = {}
        self._recorded_shapes: set[Hashable] = set()
        self._first_shapes: dict[Hashable, Hashable] = {}
        # Made once: torch compiles again for a backend that is not the same object.
        kinds = product((False, True), repeat=2)
        self._backends = {kind: partial(self.compile_graph, cuda_graphs=kind[0]) for kind in kinds}

    @property
    def how(self) -> str:
        """What it does to a function."""
        return "compiled with CUDA graphs" if self.cuda_graphs else "compiled"

    def is_new(self, function: Function) -> bool:
        """Whether a function was not compiled yet; one that is made anew in every step is the same one."""
        return self.enabled and (function_key(function), (self.cuda_graphs, False)) not in self._compiled

    def __call__(self, function: Function, compute: torch.dtype | None = None, args: Sequence[Any] = ()) -> Function:
        """The function with weights that are cast to `compute`, compiled unless that was given up; `args` is what it
        is going to be called with."""
        if not self.enabled:
            return with_cast_weights(function, compute)
        shapes = tuple(value.shape for arg in args for value in (arg.values() if isinstance(arg, Mapping) else [arg]))
        records = self.cuda_graphs and self._may_record(shapes)
        if records:  # what was returned before may be overwritten from now on
            torch.compiler.cudagraph_mark_step_begin()
        # Other shapes than the first are compiled apart, once for all of them: torch would go on with that slower code.
        is_other = self._first_shapes.setdefault(function_key(function), shapes) != shapes
        kind = records, is_other
        key = function_key(function), kind
        known = self._compiled.get(key)
        if known is None or known[0] != function:  # the same code with other closures: torch compiles it only once
            wrapped = self._with_own_code(key, function, with_cast_weights(function, compute))
            compiled = torch.compile(wrapped, backend=self._backends[kind], dynamic=is_other or None)
            known = self._compiled[key] = (function, compiled)
        return known[1]

    def _may_record(self, shapes: Hashable) -> bool:
        if len(self._recorded_shapes) < MOST_SHAPES:
            self._recorded_shapes.add(shapes)
        return shapes in self._recorded_shapes

    def _with_own_code(self, key: Hashable, function: Function, wrapped: Function) -> Function:
        """torch counts and limits compilations by code object; that of what is wrapped around all functions is one."""
        if wrapped is function:
            return function
        code = self._codes.setdefault(key, wrapped.__code__.replace())
        return FunctionType(code, wrapped.__globals__, closure=wrapped.__closure__)

    def compile_graph(
        self, graph: fx.GraphModule, inputs: list[Tensor], cuda_graphs: bool = False
    ) -> Callable[..., Any]:
        try:
            if self._is_inductor:
                keep_headers_private()
            drop_causal_masks(graph)
            return self._compile(graph, inputs, **(_CUDA_GRAPHS if cuda_graphs else {}))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self.failure = self.failure or describe(error)
            return graph.forward


@cache
def keep_headers_private() -> None:
    """Keep precompiled C++ headers in the folder of all that is compiled: see core/compile_caches.py.

    They halve the time of compiling for a CPU. Where torch keeps them is fixed when its module is imported.
    """
    from torch._inductor import codecache, config
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    folder = os.path.join(cache_dir(), "precompiled_headers")
    can_move = hasattr(codecache, "_HEADER_DIR") and hasattr(codecache, "_HEADER_LOCK_DIR")
    codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = folder, os.path.join(folder, "locks")
    if os.environ.get(HEADERS, HEADERS_OFF) == HEADERS_OFF:  # the user has not said
        config.cpp_cache_precompile_headers = can_move


def compile_calls(module: nn.Module, name: str, before_compiling: Callable[[], None] = lambda: None) -> None:
    """Compile a module's own calls; what cannot be compiled runs as it is, which one sentence says."""
    compiler = LossCompiler()

    def compile_graph(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        before_compiling()
        is_new = compiler.failure is None
        compiled = compiler.compile_graph(graph, inputs)
        if is_new and compiler.failure:
            logger.warning("%s is not compiled, because torch.compile failed: %s", name, compiler.failure)
        return compiled

    module.compile(backend=compile_graph)


def describe(error: BaseException) -> str:
    """The first line of an error of torch.compile."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def function_key(function: Function) -> Hashable:
    """A function's code, and the object whose method it is."""
    if isinstance(function, partial):
        return function_key(function.func)
    code = getattr(function, "__code__", None)
    return (code, id(getattr(function, "__self__", None))) if code is not None else id(function)


def repeat_rows(batch: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    """A smaller batch with its first row repeated, so that nothing has to be compiled for another number of rows."""
    missing = rows - len(batch["live"])
    if missing <= 0:
        return batch
    return {name: torch.cat((values, values[:1].expand(missing, *values.shape[1:]))) for name, values in batch.items()}


def zero_gradients(parameters: list[nn.Parameter]) -> None:
    """Begin a sum of gradients in memory of its own. torch would take over the first gradient itself as the sum, and a
    CUDA graph overwrites what it has returned."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
    torch._foreach_zero_([parameter.grad for parameter in parameters if parameter.grad is not None])
