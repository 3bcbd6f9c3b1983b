"""Where messages of the package go: every rank writes a log file, and rank 0 prints."""

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from samestep.core.output import print_safely
from samestep.core.safe_files import open_file

FAILURES = "samestep.failures"
"""The logger for errors that end a run. They go to the log file only, because they are printed in any case."""
PRINTED = {"is_printed": True}
"""`logger.warning(text, extra=PRINTED)`: goes to the log file only, too."""
_MOST_KEPT = 1000
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def start_logging(path: Path | None, *, show: str | None) -> None:
    """Log samestep's messages to `path`, and those from level `show` on to the terminal (None: nothing there). What is
    logged while there is neither is kept, and logged as soon as there is."""
    root = logging.getLogger("samestep")
    kept = [record for handler in root.handlers if isinstance(handler, _Kept) for record in handler.records]
    stop_logging()
    root.setLevel(logging.DEBUG if show == "debug" else logging.INFO)
    root.propagate = False
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        to_file = _LogFile(open_file(path, "a", encoding="utf-8"))
        to_file.setFormatter(logging.Formatter(_FORMAT))
        root.addHandler(to_file)
    if show is not None:
        to_terminal = _Terminal()
        to_terminal.setLevel(show.upper())
        to_terminal.addFilter(lambda record: record.name != FAILURES and not hasattr(record, "is_printed"))
        to_terminal.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        root.addHandler(to_terminal)
    if not root.handlers:
        root.addHandler(_Kept())
    for record in kept:
        root.handle(record)


def stop_logging() -> None:
    """Back to how Python logs; files are closed."""
    root = logging.getLogger("samestep")
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(logging.NOTSET)
    root.propagate = True


class _Kept(logging.Handler):
    """Keeps the first messages, such as those about data that is read before there is a run."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.records) < _MOST_KEPT:
            self.records.append(record)


class _Terminal(logging.Handler):
    """A handler whose messages neither control the terminal nor break a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print to what stderr is now: while a bar is drawn, it is another object, which prints above the bar."""
        try:
            print_safely(self.format(record), sys.stderr)
        except Exception:  # as other handlers do: a message that cannot be formatted does not end a run
            self.handleError(record)


class _LogFile(logging.StreamHandler[IO[str]]):
    """A handler that closes its file."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A line that cannot be written is left out: a full disk is reported by what the run needs to write."""
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def close(self) -> None:
        """Close the file, too."""
        with suppress(OSError):
            super().close()
            self.stream.close()
