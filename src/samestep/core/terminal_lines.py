"""Lines above the progress bars of rank 0, which has the terminal of a launch to itself while it draws.

A bar is drawn again over the last lines of the terminal. What another process prints there is lost, or leaves an old
bar behind. So launchers and other ranks put their lines into the launch's folder: rank 0 prints them while it draws
bars, else the launcher does. It also does so when rank 0 takes too long, as one that hangs.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from samestep.core.json_files import write_atomically
from samestep.core.launch_env import FOLDER

_LINES, _BARS = "line_*.txt", "bars"
_NUMBERS = count()


def hand_over(line: str, env: Mapping[str, str]) -> bool:
    """Have a line printed by whoever has the terminal; false: there is no launcher of ours, or its disk is full."""
    if FOLDER not in env:
        return False
    name = f"{time.time_ns():020d}_{os.getpid()}_{next(_NUMBERS)}"
    try:
        write_atomically(Path(env[FOLDER]) / _LINES.replace("*", name), line)
    except OSError:
        return False
    return True


def take_lines(folder: Path, older_than: float = 0.0) -> list[str]:
    """The lines that were handed over, at least so many seconds ago; each goes to one process, once."""
    found = []
    for path in sorted(folder.glob(_LINES)):
        with suppress(OSError):
            if older_than and time.time() - path.stat().st_mtime < older_than:
                continue
            line = path.read_text()
            path.unlink()  # fails if another process took it
            found.append(line)
    return found


def record_bars(bars: int, env: Mapping[str, str]) -> None:
    """For rank 0: that it draws so many bars, and prints what is handed over; 0: it does not any more."""
    if FOLDER in env:
        with suppress(OSError):
            write_atomically(Path(env[FOLDER]) / _BARS, str(bars)) if bars else forget_bars(Path(env[FOLDER]))


def forget_bars(folder: Path) -> None:
    """Rank 0 draws no bars, or is gone."""
    (folder / _BARS).unlink(missing_ok=True)


def bars_drawn(folder: Path) -> int:
    """How many bars rank 0 draws."""
    try:
        return int((folder / _BARS).read_text())
    except (OSError, ValueError):
        return 0
