"""Printing to a terminal or pipe that may vanish: that ends the showing, never the run."""

import os
from contextlib import suppress
from typing import Any, TextIO


def put(text: str, file: TextIO, end: str = "\n") -> None:
    """Print at once, if there is still somebody to read it."""
    try:
        print(text, file=file, end=end, flush=True)
    except OSError:
        _silence(file)


class Lasting:
    """A text file whose writes never fail: once its reader is gone, it leads nowhere."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write, if it can be."""
        try:
            return self._file.write(text)
        except OSError:
            _silence(self._file)
            return len(text)

    def flush(self) -> None:
        """Flush, if it can be."""
        try:
            self._file.flush()
        except OSError:
            _silence(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _silence(file: TextIO) -> None:
    """Lead the file nowhere. What is buffered would fail once more when Python ends, and change the exit code."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)
