"""What libraries print below Python (torch's C++ warnings with their stack frames) goes to a rank's log.

They write to file 2, which is the terminal. Python's own stderr gets another number for the terminal, and file 2
becomes the log. What Python prints about a crash (faulthandler) still goes to the terminal.
"""

import faulthandler
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from samestep.core.safe_files import open_file

_STDERR = 2
_FRAMES = re.compile(
    r"\n*^Exception raised from .* \(most recent call first\):\n?(?:^(?:frame #\d+: .*|<omitting python frames>)\n?)*"
    r"|(?:^(?:[ \t]*)(?:frame #\d+: .*|<omitting python frames>)$\n?)+",
    re.MULTILINE,
)


def without_native_frames(text: str) -> str:
    """An error's text without the C++ stack frames that torch appends to it."""
    return _FRAMES.sub("\n", text).rstrip("\n") if "frame #" in text or "Exception raised from" in text else text


@contextmanager
def without_native_output() -> Iterator[None]:
    """Drop what a library prints below Python about an error that it raises as well."""
    if sys.stderr is None or not _is_file_2(sys.stderr):
        yield
        return
    stream = sys.stderr
    sys.stderr = _move_stderr()  # for what other threads have to say
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), _STDERR)
        yield
    finally:
        os.dup2(sys.stderr.fileno(), _STDERR)
        sys.stderr.close()
        sys.stderr = stream


def send_native_output_to(log: Path) -> None:
    """From now on file 2 of this process is `log`, to its very end, where libraries close their connections.

    Python's stderr stays what it was. One that is not file 2, as in a test or a notebook, is left alone with file 2.
    """
    if sys.stderr is None or not _is_file_2(sys.stderr):
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr = sys.__stderr__ = _move_stderr()  # type: ignore[misc]
    with open_file(log, "ab") as file:
        os.dup2(file.fileno(), _STDERR)
    if faulthandler.is_enabled():
        faulthandler.enable(sys.stderr)


def _move_stderr() -> TextIOWrapper:
    """Python's stderr under another number than 2."""
    sys.stderr.flush()
    return open(os.dup(_STDERR), "w", buffering=1, encoding=sys.stderr.encoding, errors=sys.stderr.errors)


def _is_file_2(stream: object) -> bool:
    try:
        return stream.fileno() == _STDERR  # type: ignore[attr-defined]
    except (OSError, ValueError, AttributeError):
        return False
