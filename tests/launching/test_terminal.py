"""What a launcher prints while rank 0 draws bars on its terminal goes above them: no line is lost, no old bar stays."""

import os
import pty
import re
import sys
import termios
import textwrap
from pathlib import Path

import pytest

from samestep.core import terminal_lines
from samestep.core.launch_env import FOLDER
from samestep.launching import terminal

WAIT = """
import os, signal, sys, threading, time
from pathlib import Path

def wait_for(name):
    end = time.monotonic() + 200
    while not Path(name).exists():
        assert time.monotonic() < end
        time.sleep(0.02)

"""
RANK_0 = """
import logging
from samestep.core.logs import start_logging
from samestep.train.logging.console import Screen

start_logging(None, show="warning")
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a run, which does not end in the middle of a step
with Screen(visible=True) as screen:
    screen.print("before")
    for step in range(1, 4):
        screen.advance("train", step, 3, "loss 0.5")
    for row in screen.track("validate", range(5), 5):
        if row == 1:
            time.sleep(0.3)  # so both bars are drawn
            logging.getLogger("samestep").warning("of rank 0")
            Path("drawn").touch()
            wait_for("printed")
    screen.print("after")
    for row in screen.track("validate", range(5), 5):
        time.sleep(0.5)  # so both bars are drawn
        os.kill(os.getpid(), signal.SIGKILL)
"""
RANK_1 = """
from samestep.core.terminal_lines import hand_over

wait_for("drawn")
hand_over("samestep: a line of rank 1", os.environ)
"""
LAUNCHER = """
from samestep.launching.launcher import Launcher
from samestep.launching.terminal import show_line

def print_lines():
    wait_for("drawn")
    time.sleep(0.5)
    show_line("[node1] a line of another launcher")
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1.0)  # bars are drawn again over whatever was printed
    Path("printed").touch()

threading.Thread(target=print_lines, daemon=True).start()
sys.exit(Launcher(["worker.py"], nproc=2).run())
"""


class Screen:
    """The lines of a terminal that obeys what bars need: carriage return, cursor up, erased lines."""

    def __init__(self, text: str) -> None:
        self.lines, self._row, self._column = [""], 0, 0
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|.", text, re.DOTALL):
            self._obey(part)

    def _obey(self, part: str) -> None:
        if part == "\r":
            self._column = 0
        elif part == "\n":
            self._row += 1
            self.lines += [""] * (self._row + 1 - len(self.lines))
        elif part == "\x1b[2K":
            self.lines[self._row] = ""
        elif part.startswith("\x1b") and part.endswith("A"):
            self._row = max(0, self._row - int(part[2:-1] or 1))
        elif not part.startswith("\x1b"):
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + part + line[self._column + 1 :]
            self._column += 1


def printed_on_terminal(folder: Path, code: str) -> str:
    """Run Python on a terminal of its own until it has ended; what it printed there."""
    process, master = pty.fork()
    if process == 0:
        termios.tcsetwinsize(0, (50, 150))
        os.chdir(folder)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("TTY_", "NO_COLOR"))}
        env |= {"TERM": "xterm", "OMP_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, "-c", code], env)
    data = b""
    try:
        while read := os.read(master, 4096):
            data += read
    except OSError:  # all programs on the terminal have ended
        pass
    os.close(master)
    os.waitpid(process, 0)
    return data.decode(errors="replace")


@pytest.mark.timeout(300)
def test_all_lines_go_above_the_bars_and_those_of_a_killed_rank_are_taken_away(tmp_path: Path) -> None:
    parts = [textwrap.indent(part, "    ") for part in (RANK_0, RANK_1)]
    (tmp_path / "worker.py").write_text(f"{WAIT}if os.environ['RANK'] == '0':\n{parts[0]}else:\n{parts[1]}")
    printed = printed_on_terminal(tmp_path, WAIT + LAUNCHER)
    assert "3/3" in printed and "validate" in printed, "bars were drawn"
    lines = [line.rstrip() for line in Screen(printed).lines if line.strip()]
    stopping = "samestep: stopping all ranks; Ctrl-C again ends them at once"
    ended = "samestep: stopped by SIGINT before training began; there is no run yet"
    between = ["WARNING: of rank 0", "samestep: a line of rank 1", "[node1] a line of another launcher", stopping]
    assert lines[0] == "before" and lines[-2:] == ["after", ended] and sorted(lines[1:-2]) == sorted(between), lines


def test_what_rank_0_does_not_take_is_printed_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As when it hangs. The bars are cleared first, and room is left for them to be drawn again."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    terminal_lines.record_bars(2, os.environ)
    for number in range(3):
        assert terminal_lines.hand_over(f"line {number}", os.environ)
    terminal.show_waiting_lines(tmp_path)
    assert capfd.readouterr().err == "", "rank 0 may still take them"
    for path in tmp_path.glob("line_*"):
        os.utime(path, (1.0, 1.0))
    terminal.show_waiting_lines(tmp_path)
    shown = capfd.readouterr()
    assert shown.err == "line 0\n\nline 1\n\nline 2\n\n" and shown.out.count("\x1b[1A") == 3
    terminal.show_waiting_lines(tmp_path)
    assert capfd.readouterr().err == "", "each is printed once"
    terminal_lines.record_bars(0, os.environ)
    terminal_lines.hand_over("without bars", os.environ)
    terminal.show_waiting_lines(tmp_path)
    assert capfd.readouterr() == ("", "without bars\n"), "at once"
