"""Terminal and log files: every rank writes a log, rank 0 prints, and a closed terminal never ends the run."""

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
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


FAILURES = "samestep.failures"
"""The logger for errors that end a run. They go to the log file only, because they are printed in any case."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def start_logging(path: Path | None, *, show: str | None) -> None:
    """Log samestep's messages to `path`, and those from level `show` on to the terminal (None: nothing there)."""
    root = logging.getLogger("samestep")
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(logging.DEBUG if show == "debug" else logging.INFO)
    root.propagate = False
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        to_file = logging.FileHandler(path, encoding="utf-8")
        to_file.setFormatter(logging.Formatter(_FORMAT))
        root.addHandler(to_file)
    if show is not None:
        to_terminal = logging.StreamHandler(sys.stderr)
        to_terminal.setLevel(show.upper())
        to_terminal.addFilter(lambda record: record.name != FAILURES)
        to_terminal.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        root.addHandler(to_terminal)
    if not root.handlers:
        root.addHandler(logging.NullHandler())


def plural(count: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('sh') else 's'}"
