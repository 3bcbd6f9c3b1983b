"""Out of memory: recognise it, and say which micro-batch to try next."""

from pathlib import Path

import torch

_TEXTS = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that a device or the machine has no memory left, in one of the many ways to say so."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)


def memory_sentence(error: BaseException, batch_size: int) -> str:
    """What happened, with the first two sentences of what torch says of it."""
    said = ". ".join(str(error).split(". ")[:2]).strip().rstrip(".")
    return f"out of memory with batch_size {batch_size} ({type(error).__name__}{': ' if said else ''}{said})"


def memory_advice(batch_size: int, run: Path) -> str:
    """What to do about it by hand."""
    if batch_size == 1:
        return "and no smaller one exists; use a smaller model, shorter rows, or distributed.strategy=fsdp"
    return f"half of it leaves the run the same: samestep train --resume {run} --batch_size {batch_size // 2}"
