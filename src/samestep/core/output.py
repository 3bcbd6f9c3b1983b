"""What is printed: a closed terminal never ends the run."""

import os
from contextlib import suppress
from typing import Any, TextIO


def print_safely(text: str, file: TextIO, end: str = "\n") -> None:
    """Print and flush. If the reader of `file` is gone, nothing is printed and nothing fails."""
    try:
        print(text, file=file, end=end, flush=True)
    except OSError:
        _redirect_to_devnull(file)


class ResilientStream:
    """A text stream whose writes never fail: once its reader is gone, output is discarded."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write, unless the reader is gone."""
        try:
            return self._file.write(text)
        except OSError:
            _redirect_to_devnull(self._file)
            return len(text)

    def flush(self) -> None:
        """Flush, unless the reader is gone."""
        try:
            self._file.flush()
        except OSError:
            _redirect_to_devnull(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _redirect_to_devnull(file: TextIO) -> None:
    """Discard all further output. Otherwise buffered text fails again when Python exits, and changes the exit code."""
    with suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, file.fileno())
        os.close(devnull)


def plural(count: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('sh') else 's'}"
