"""Recording kernels once and starting them together from then on, where a device waits for the host to start them."""

import logging
from collections.abc import Callable
from functools import cache

import torch

logger = logging.getLogger(__name__)


def record(function: Callable[[], None], device: torch.device, what: str) -> Callable[[], None] | None:
    """What `function` does to tensors, as one CUDA graph; None where it cannot be recorded, which one sentence says.

    It is recorded, not run. It must have run before, and must change tensors in place alone.
    """
    graph, stream = torch.cuda.CUDAGraph(), _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")  # other threads save and load meanwhile
            try:
                function()
            finally:
                graph.capture_end()
    except RuntimeError as error:
        logger.warning("%s is not recorded as a CUDA graph: %s", what, str(error).strip().splitlines()[0])
        return None
    torch.cuda.current_stream(device).wait_stream(stream)
    return graph.replay


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all graphs: cuBLAS keeps memory for every stream that it has ever worked on."""
    return torch.cuda.Stream(device)
