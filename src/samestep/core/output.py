"""What is printed, in one place: a closed terminal never ends the run, which says so in its log, and no text controls
the terminal.

Texts of models, names and file names may hold control characters, which a terminal obeys: they could set the clipboard
or hide a line. On a terminal they are shown as `\\x1b`; a pipe or a file gets every text unchanged.
"""

import logging
import os
import re
import sys
from contextlib import suppress
from typing import Any, TextIO

logger = logging.getLogger(__name__)
_LONE = "\ud800-\udfff"  # halves of surrogate pairs, as in file names that are not UTF-8: they cannot be encoded
_SURROGATES = re.compile(f"[{_LONE}]")
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f"  # those of ASCII but newline and tab
    "\x7f-\x9f"  # delete, and the second set, in which \x9b begins a sequence as escape does
    f"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069{_LONE}]"  # what changes the direction of text
)


def escape_controls(text: str) -> str:
    """Text without characters that a terminal obeys. What is JSON stays so, and means the same."""
    return _CONTROLS.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}" if found[0] < " " else f"\\u{ord(found[0]):04x}"


def is_terminal(file: TextIO) -> bool:
    """Whether somebody looks at `file`. Open MPI gives its ranks a terminal without columns, whatever it writes to."""
    try:
        return file.isatty() and os.get_terminal_size(file.fileno()).columns > 0
    except (OSError, ValueError):
        return False


def text_for(file: TextIO, text: str) -> str:
    """The text as it may be printed to `file`."""
    return escape_controls(text) if file.isatty() else _SURROGATES.sub(_escaped, text)


def print_text(text: str, *, end: str = "\n", flush: bool = False) -> None:
    print(text_for(sys.stdout, text), end=end, flush=flush)


def print_safely(text: str, file: TextIO, end: str = "\n") -> None:
    """Print and flush. If the reader of `file` is gone, nothing is printed and nothing fails."""
    try:
        print(text_for(file, text), file=file, end=end, flush=True)
    except OSError as error:
        _redirect_to_devnull(file, error)


class ResilientStream:
    """A text stream whose writes never fail: once its reader is gone, output is discarded."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write, unless the reader is gone."""
        try:
            return self._file.write(text)
        except OSError as error:
            _redirect_to_devnull(self._file, error)
            return len(text)

    def flush(self) -> None:
        """Flush, unless the reader is gone."""
        try:
            self._file.flush()
        except OSError as error:
            _redirect_to_devnull(self._file, error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _redirect_to_devnull(file: TextIO, error: OSError) -> None:
    """Discard all further output. Otherwise buffered text fails again when Python exits, and changes the exit code."""
    with suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, file.fileno())
        os.close(devnull)
    name = "standard output" if file is sys.stdout else "standard error"
    logger.warning("%s can no longer be written (%s); what follows is not printed there", name, error.strerror)


def open_closed_streams() -> list[str]:
    """Give a process that was started with closed output /dev/null instead; returns the names of what was closed.

    Otherwise the next files that it opens get these numbers, and what libraries print goes into those files.
    """
    names = {0: "standard input", 1: "standard output", 2: "standard error"}
    closed = [number for number in names if not _is_open(number)]
    for number in closed:
        handle = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
        os.set_inheritable(handle, True)
        assert handle == number
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    return [names[number] for number in closed]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def format_speed(rate: float) -> str:
    """So many of something in a second."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def format_size(size: float) -> str:
    """Bytes in the unit that fits, in steps of a thousand: `86.2 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def plural(count: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('sh') else 's'}"
