"""Recording kernels once and starting them together from then on, where a device waits for the host to start them."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar

import torch

logger = logging.getLogger(__name__)
T = TypeVar("T")


def record(function: Callable[[], None], device: torch.device, what: str) -> Callable[[], None] | None:
    """What `function` does to tensors, as one CUDA graph; None where it cannot be recorded, which one sentence says.

    It is recorded, not run. It must have run before, and must change tensors in place alone.
    """
    try:
        with recording_stream(device):
            return capture(function)[0].replay
    except RuntimeError as error:
        logger.warning("%s is not recorded as a CUDA graph: %s", what, str(error).strip().splitlines()[0])
        return None


def capture(function: Callable[[], T], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, T]:
    """The kernels of a function as a graph, and what it returned: tensors that a replay fills. Inside of
    `recording_stream`; `pool` is that of a graph whose tensors it reads."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")  # other threads save and load meanwhile
    try:
        found = function()
    except BaseException:
        with suppress(RuntimeError):  # it would say that there was an error, not which one
            graph.capture_end()
        with suppress(RuntimeError):
            _capture_again()
        raise
    graph.capture_end()
    return graph, found


def _capture_again() -> None:
    """Capture something else: after a capture that failed, torch's random numbers would fail until one succeeds."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    torch.zeros(1, device="cuda")
    graph.capture_end()


@contextmanager
def recording_stream(device: torch.device) -> Iterator[None]:
    """Around what is recorded: the stream for it, after all that was started before."""
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all graphs: cuBLAS keeps memory for every stream that it has ever worked on."""
    return torch.cuda.Stream(device)
