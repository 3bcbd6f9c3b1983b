"""Runs work that may hang in a thread that can be left behind."""

import faulthandler
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from samestep.world.source_lines import relevant_line
from samestep.world.watchdog.stack_dump import stack_of

T = TypeVar("T")


class TimeLimitExceeded(Exception):
    """Work was not done in time. `where` is the source line at which it was seen last."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


def run_within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises; `TimeLimitExceeded` if it takes longer, and its thread is left running."""
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="check", daemon=True)
    thread.start()
    thread.join(seconds)
    if result:
        return result[0]
    if failure:
        raise failure[0]
    frame = sys._current_frames().get(thread.ident or 0)
    raise TimeLimitExceeded(relevant_line(stack_of(frame)) or "an unknown source line")


def exit_after(seconds: float) -> None:
    """End this process with a stack dump after so many seconds, unless this is called again; 0 cancels it.

    No Python code runs for it, so it works even where foreign code holds the interpreter for ever.
    """
    faulthandler.cancel_dump_traceback_later()
    if seconds and sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
