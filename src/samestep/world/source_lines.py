"""Which line of a stack a user would look for: one of the recipe, before those of samestep and of libraries."""

import gc
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

SAMESTEP = str(Path(__file__).parents[1])
_SAMESTEP = os.path.join(SAMESTEP, "")
_LIBRARY = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")})
_RECIPES = os.path.join(SAMESTEP, "recipes", "")
"""Those that come with samestep; their files are a recipe's, like those of a user."""
StackFrame = tuple[str, int, str]
"""File, line and function."""
_reading_stacks = threading.Lock()


def frames_of(top: FrameType | None) -> Iterator[FrameType]:
    """A stack of this thread, the innermost frame first."""
    while top is not None:
        yield top
        top = top.f_back


def as_stack(top: FrameType | None) -> list[StackFrame]:
    """The same as plain data."""
    return [(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) for frame in frames_of(top)]


def stacks_of_threads() -> dict[int, list[StackFrame]]:
    """The stacks of all threads of this process, by thread.

    In Python 3.11, asking a frame for its caller may collect garbage. A finalizer may then let the other thread go on
    and leave that frame, and Python reads memory that was freed: the process crashes. So nothing is collected here.
    """
    with _reading_stacks:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return {thread: as_stack(top) for thread, top in sys._current_frames().items()}
        finally:
            if was_enabled:
                gc.enable()


def calling_frame(top: FrameType) -> StackFrame:
    """The line of a recipe from which a frame was called; without a recipe: the next line of another file."""
    stack = as_stack(top)
    return _of_recipe(stack) or next((frame for frame in stack if frame[0] != stack[0][0]), stack[0])


def relevant_line(stack: list[StackFrame]) -> str:
    """The source line that a user would look for: the innermost of the recipe, else of samestep, else of all."""
    known = [frame for frame in stack if not frame[0].startswith("<")]
    ours = next((frame for frame in known if _is_ours(frame[0])), None)
    users = next((frame for frame in known if not is_library(frame[0])), None)
    chosen = _of_recipe(known) or ours or users or next(iter(known), None)
    return describe(chosen) if chosen else ""


def describe(frame: StackFrame) -> str:
    """A frame as messages have it, with a path relative to the package or to the working directory."""
    file, line, function = frame
    for root in (str(Path(SAMESTEP).parent), os.getcwd()):
        if file.startswith(root + os.sep):
            file = os.path.relpath(file, root)
            break
    return f"{file}:{line} in {function}"


def _of_recipe(stack: list[StackFrame]) -> StackFrame | None:
    """The innermost line of a recipe. Code that samestep did not call is none: a script that calls samestep."""
    found = None
    for frame in stack:
        if _is_ours(frame[0]):
            if found:
                return found
        elif found is None and not is_library(frame[0]) and not frame[0].startswith("<"):
            found = frame
    return None


def is_library(file: str) -> bool:
    """Whether a file is of Python or of an installed package other than samestep."""
    return file.startswith(_LIBRARY) and not file.startswith(_SAMESTEP)


def _is_ours(file: str) -> bool:
    return file.startswith(_SAMESTEP) and not file.startswith(_RECIPES)
