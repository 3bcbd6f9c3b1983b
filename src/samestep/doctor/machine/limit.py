"""Work that may hang, done where it can be left behind."""

import faulthandler
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")
_TORCH = str(Path(torch.__file__).parent)
_LIBRARY = str(Path(threading.__file__).parent)


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
    raise Late(_where(thread))


def last_resort(seconds: float) -> None:
    """End this process with its stacks after so many seconds, unless this is called again; 0 takes it back.

    No Python is needed for it, so it works where foreign code holds the interpreter for ever.
    """
    faulthandler.cancel_dump_traceback_later()
    if seconds and sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)


def _where(thread: threading.Thread) -> str:
    """The innermost line of a thread outside of torch and the standard library: `disk.py:12 in probe`."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((_TORCH, _LIBRARY)):
            return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return "a place unknown"
