"""Ctrl-C while Python imports the command ends it with one sentence; a program that uses the package is left alone."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.start_signals import Moment, trial
from fuzz.trial import REFUSED

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    "moment", [Moment("import", "typing"), Moment("import", "logging"), Moment("import", "torch._C")], ids=str
)
def test_an_interrupt_during_an_import_is_one_sentence(tmp_path: Path, moment: Moment) -> None:
    found = trial(tmp_path / "start", moment, signal.SIGINT)
    assert found.outcome == REFUSED, found.detail


def test_a_program_that_imports_the_package_keeps_its_traceback() -> None:
    code = "import samestep, os, signal; os.kill(os.getpid(), signal.SIGINT)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in ended.stderr and "samestep: " not in ended.stderr


def test_a_verb_that_is_interrupted_says_so() -> None:
    code = (
        "import os, signal, sys; from samestep.cli import config, main;"
        "config.run = lambda args: os.kill(os.getpid(), signal.SIGINT) or __import__('time').sleep(9);"
        "sys.exit(main.main(['config', 'mdlm']))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "samestep: interrupted\n")
