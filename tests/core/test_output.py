"""A closed terminal or pipe ends the output, not the program, and does not change its exit code."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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
