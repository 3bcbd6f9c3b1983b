"""A closed terminal or pipe ends the output, not the program, and does not change its exit code. No text controls a
terminal."""

import json
import os
import pty
import re
import subprocess
import sys
import termios
import textwrap
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.core.output import escape_controls

BODY = """
import sys, time
from samestep.core.output import ResilientStream, print_safely
sys.stdin.readline()          # until the reader of the output is gone
{show}
open(sys.argv[1], "w").write("went on")
sys.exit(75)
"""
SHOWS = {
    "print": "print_safely('x' * 100_000, sys.stdout); print_safely('again', sys.stdout)",
    "stream": "out = ResilientStream(sys.stdout); out.write('x' * 100_000); out.flush(); out.write('x'); print('more')",
    "errors": "print_safely('x' * 100_000, sys.stderr); print_safely('again', sys.stderr)",
}


@pytest.mark.parametrize("show", SHOWS)
def test_a_vanished_reader_changes_nothing(show: str, tmp_path: Path) -> None:
    code = textwrap.dedent(BODY).format(show=SHOWS[show])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "after")], **pipes)  # type: ignore[call-overload]
    process.stdout.close()
    process.stderr.close()
    process.stdin.write("go\n")
    process.stdin.close()
    assert process.wait(30) == 75
    assert (tmp_path / "after").read_text() == "went on"


CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
HOSTILE = f"a{CLIPBOARD}\x9b2J\x1b[8m\r\x08\u202eb\u2066[/b][red]:smile: end"
ESCAPED = r"a\x1b]52;c;cm0gLXJmIH4=\x07\u009b2J\x1b[8m\x0d\x08\u202eb\u2066[/b][red]:smile: end"
PRINTERS = {
    "text": "from samestep.core.output import print_text; print_text(T)",
    "error": "from samestep.core.errors import print_error; print_error(T)",
    "log": "import logging; from samestep.core.logs import start_logging; start_logging(None, show='info');"
    "logging.getLogger('samestep.x').warning(T)",
    "sample": "from samestep.kit.showing import show_texts; show_texts([{'text': T}])",
    "samples": "from samestep.kit.showing import show_texts; show_texts([{'words': T}, {'text': T}])",
    "line": "from samestep.train.logging.console import Screen; Screen(visible=True).print(T)",
    "banner": "from samestep.train.logging.console import Screen; Screen(visible=True).banner(T, {T: T})",
    "bar": "from samestep.train.logging.console import Screen\n"
    "with Screen(visible=True) as screen: screen.advance(T, 1, 2, T); screen.print(T)",
    "table": "from rich.table import Table; from samestep.core.console import PlainConsole\n"
    "table = Table(title=T); table.add_column(T); table.add_row(T); PlainConsole().print(table)",
    "settings": "from samestep.cli.config import _draw; from samestep.core.pages.tables import Table\n"
    "_draw([Table((T,), [(T,)], title=T)], None)",
}
"""Everything that prints, by what it prints."""


def run_on_terminal(command: list[str], cwd: Path | None = None, columns: int = 1000) -> str:
    """What a program prints to a terminal that is wide enough."""
    main, worker = pty.openpty()
    termios.tcsetwinsize(main, (24, columns))
    env = os.environ | {"COLUMNS": "1000", "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=worker, stderr=worker, stdin=worker, env=env, cwd=cwd, close_fds=True)
    os.close(worker)
    printed = b""
    try:
        while chunk := os.read(main, 65536):
            printed += chunk
    except OSError:  # what Linux raises at the end
        pass
    finally:
        os.close(main)
    process.wait(60)
    return printed.decode()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("printer", PRINTERS)
def test_no_text_controls_a_terminal(printer: str) -> None:
    command = [sys.executable, "-c", f"T = {HOSTILE!r}\n{PRINTERS[printer]}"]
    printed = run_on_terminal(command)
    for hostile in (CLIPBOARD, "\x1b]", "\x9b", "\x1b[8m", "\u202e", "\u2066", "\x07"):
        assert hostile not in printed
    assert "]52;c;cm0gLXJmIH4=" in printed, "it is shown"
    assert "[/b][red]:smile: end" in printed, "brackets are no markup"
    if printer in ("text", "error", "sample", "log"):
        assert ESCAPED in printed


@pytest.mark.timeout(900)
def test_a_terminal_without_columns_shows_no_bars_and_is_not_controlled_either() -> None:
    """Open MPI gives its ranks such a terminal, also where its own output is the file of a job."""
    command = [sys.executable, "-c", f"T = {HOSTILE!r}\n{PRINTERS['bar']}"]
    printed = run_on_terminal(command, columns=0)
    assert "]52;c;cm0gLXJmIH4=" in printed
    assert "\x1b" not in printed
    assert "\x1b" in run_on_terminal(command), "where somebody looks there is a bar"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("printer", ["text", "sample"])
def test_a_pipe_gets_the_text_unchanged(printer: str) -> None:
    command = [sys.executable, "-c", f"T = {HOSTILE!r}\n{PRINTERS[printer]}"]
    assert subprocess.run(command, capture_output=True, check=True).stdout.decode() == f"{HOSTILE}\n"


@pytest.mark.timeout(900)
def test_names_of_other_users_runs(tmp_path: Path) -> None:
    run = tmp_path / "runs" / f"a{CLIPBOARD}b"
    (run / "job").mkdir(parents=True)
    (run / "job" / "job.json").write_text(json.dumps({"jobs": []}))
    samestep = [sys.executable, "-m", "samestep"]
    for args in (["why", run.name], ["checkpoints", run.name], ["why", run.name, "--json"]):
        printed = run_on_terminal([*samestep, *args], cwd=tmp_path)
        assert "\x1b" not in printed and "\x07" not in printed
        assert re.search(r"\\(x|u00)1b\]52", printed), printed


@given(st.text())
def test_escaped_text_is_printable_and_json_stays_json(text: str) -> None:
    shown = escape_controls(text)
    assert not [sign for sign in shown if unicodedata.category(sign) in ("Cc", "Cs") and sign not in "\n\t"]
    assert not [sign for sign in shown if unicodedata.bidirectional(sign) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI")]
    assert escape_controls(shown) == shown
    assert json.loads(escape_controls(json.dumps({text: text}, ensure_ascii=False))) == {text: text}


def test_a_name_that_is_not_utf8_can_be_printed() -> None:
    command = [sys.executable, "-c", f"T = 'a' + chr(0xdcff)\n{PRINTERS['text']}"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"a\\udcff\n"


CLOSED = """
import os, sys
from samestep.core.output import open_closed_streams
closed = open_closed_streams()
handle = os.open("opened", os.O_WRONLY | os.O_CREAT)
os.write(1, b"printed"), os.write(2, b"printed"), print("more"), print("more", file=sys.stderr)
sys.exit(open("result", "w").write(f"{closed} {handle > 2}") and 0)
"""


def test_closed_output_is_no_number_for_other_files(tmp_path: Path) -> None:
    def close() -> None:
        os.closerange(0, 3)

    ended = subprocess.run([sys.executable, "-c", CLOSED], cwd=tmp_path, preexec_fn=close)
    assert ended.returncode == 0
    assert (tmp_path / "result").read_text() == "['standard input', 'standard output', 'standard error'] True"
    assert (tmp_path / "opened").read_bytes() == b""
