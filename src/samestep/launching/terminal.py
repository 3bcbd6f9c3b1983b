"""What a launcher prints: above the bars that rank 0 draws on the same terminal (core/terminal_lines.py)."""

import os
import sys
from pathlib import Path

from samestep.core import launch_env, terminal_lines
from samestep.core.output import ResilientStream, is_terminal, print_safely

PATIENCE = 2.0
"""Seconds after which a line is printed here that rank 0 has not printed."""
_CLEAR_LINE, _LINE_UP, _SHOW_CURSOR = "\r\x1b[2K", "\x1b[1A", "\x1b[?25h"


def show_line(line: str) -> None:
    """Print a line to the user; a closed terminal is no error."""
    if not hand_to_rank_0(line):
        print_safely(line, sys.stderr)


def hand_to_rank_0(line: str) -> bool:
    """Have rank 0 print a line, if it draws bars here."""
    folder = os.environ.get(launch_env.FOLDER)
    is_drawn_over = folder is not None and is_terminal(sys.stderr) and terminal_lines.bars_drawn(Path(folder)) > 0
    return is_drawn_over and terminal_lines.hand_over(line, os.environ)


def show_waiting_lines(folder: Path) -> None:
    """Print what was handed over and is not printed by rank 0: at once if that draws no bars, else after a while."""
    bars = terminal_lines.bars_drawn(folder)
    for line in terminal_lines.take_lines(folder, older_than=PATIENCE if bars else 0.0):
        if bars:
            _clear_bars(bars)
        print_safely(line + "\n" * max(0, bars - 1), sys.stderr)  # room for bars that are drawn again


def ranks_ended(folder: Path) -> None:
    """Take away what a killed rank 0 left on the terminal: bars, and no cursor. Then print what it has not printed."""
    if bars := terminal_lines.bars_drawn(folder):
        _clear_bars(bars)
        terminal_lines.forget_bars(folder)
    show_waiting_lines(folder)


def _clear_bars(bars: int) -> None:
    screen = ResilientStream(sys.stdout)
    screen.write(_CLEAR_LINE + (_LINE_UP + _CLEAR_LINE) * (bars - 1) + _SHOW_CURSOR)
    screen.flush()
