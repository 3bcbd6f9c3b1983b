"""What libraries print below Python (torch's C++ warnings with their stack frames) goes to a rank's log.

They write to file 2, which is the terminal. Python's own stderr gets another number for the terminal, and file 2
becomes the log. What Python prints about a crash (faulthandler) still goes to the terminal.
"""

import faulthandler
import os
import re
import sys
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


def send_native_output_to(log: Path) -> None:
    """From now on file 2 of this process is `log`, to its very end, where libraries close their connections.

    Python's stderr stays what it was. One that is not file 2, as in a test or a notebook, is left alone with file 2.
    """
    if sys.stderr is None or not _is_file_2(sys.stderr):
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    terminal = os.dup(_STDERR)
    with open_file(log, "ab") as file:
        os.dup2(file.fileno(), _STDERR)
    stream = open(terminal, "w", buffering=1, encoding=sys.stderr.encoding, errors=sys.stderr.errors)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = stream  # type: ignore[misc]
    if faulthandler.is_enabled():
        faulthandler.enable(stream)


def _is_file_2(stream: object) -> bool:
    try:
        return stream.fileno() == _STDERR  # type: ignore[attr-defined]
    except (OSError, ValueError, AttributeError):
        return False
