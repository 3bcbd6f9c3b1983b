"""Work that may hang, done where it can be left behind."""

import faulthandler
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from samestep.world.watchdog.stack_dump import relevant_line, stack_of

T = TypeVar("T")


class Late(Exception):
    """Work was not done in time. `where` is the source line at which it was seen last."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises, unless it takes longer: then `Late`, and its thread is left where it is."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def do() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=do, name="exam", daemon=True)
    thread.start()
    thread.join(seconds)
    if outcome:
        return outcome[0]
    if failure:
        raise failure[0]
    frame = sys._current_frames().get(thread.ident or 0)
    raise Late(relevant_line(stack_of(frame)) or "a place unknown")


def last_resort(seconds: float) -> None:
    """End this process with its stacks after so many seconds, unless this is called again; 0 takes it back.

    No Python is needed for it, so it works where foreign code holds the interpreter for ever.
    """
    faulthandler.cancel_dump_traceback_later()
    if seconds and sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
