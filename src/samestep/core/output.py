"""Terminal and log files: every rank keeps a log, rank 0 prints, and a terminal that vanishes never ends the run."""

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
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


FAILURES = "samestep.failures"
"""The logger for what ends a run: written to the log file only, since the terminal hears of it in any case."""
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
