"""Importing torch without the garbage collector, which would take a quarter of the time."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected_imports() -> Iterator[None]:
    """Import without garbage collection, and leave what exists by then out of every later collection.

    torch makes hundreds of thousands of objects that stay until the end: nothing is found among them, at any time.
    Where torch is imported already, the objects of the program around this call are left alone.
    """
    if "torch" in sys.modules:
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
