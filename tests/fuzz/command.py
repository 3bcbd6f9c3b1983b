"""One call of `samestep` in a process of its own: forked, so that it costs milliseconds and may be killed.

Root may read files that nobody may read; so a call by root gives that up first.
"""

import ctypes
import os
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from samestep.cli.main import main

_CAPABILITY_VERSION = 0x20080522
TIMEOUT = 120.0
"""Seconds after which a call counts as hung."""
TRACEBACK = "Traceback (most recent call last)"
SENTENCE = "samestep: "


@dataclass(frozen=True)
class Result:
    """How a call ended."""

    code: int
    """The exit code; negative: the signal that ended it, which is SIGKILL for one that hung."""
    output: str

    @property
    def has_crashed(self) -> bool:
        """Whether it ended with a traceback, by a signal or in silence."""
        return TRACEBACK in self.output or self.code < 0 or (self.code > 0 and not self.output.strip())

    @property
    def is_refusal(self) -> bool:
        """Whether it ended as careless input should: exit code 2 and one sentence."""
        return self.code == 2 and self.output.count(f"\n{SENTENCE}") + self.output.startswith(SENTENCE) == 1


def call(args: Sequence[str], folder: Path, work: Callable[[Sequence[str]], int] = main) -> Result:
    """Run `samestep ARGS` in `folder`, to its end or until it has taken too long."""
    printed = folder / ".printed"
    printed.touch()
    child = os.fork()
    if child == 0:
        _run(args, folder, printed, work)
    end = time.monotonic() + TIMEOUT
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            end = float("inf")
        time.sleep(0.002)
    output = printed.read_text(encoding="utf-8", errors="replace")
    printed.unlink()
    return Result(os.waitstatus_to_exitcode(status), output)


def _run(args: Sequence[str], folder: Path, printed: Path, work: Callable[[Sequence[str]], int]) -> None:
    """What the child does; it never returns."""
    code = 99
    try:
        handle = os.open(printed, os.O_WRONLY | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = open(1, "w", encoding="utf-8"), open(2, "w", encoding="utf-8")  # noqa: SIM115
        os.chdir(folder)
        os.environ["XDG_CONFIG_HOME"] = os.environ["HOME"] = str(folder)
        if os.geteuid() == 0:
            _drop_capabilities()
        torch.set_num_threads(1)
        code = work(args)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _drop_capabilities() -> None:
    """Without them root, too, can read only what its permissions allow."""
    header, nothing = struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24)
    if ctypes.CDLL(None, use_errno=True).capset(header, nothing):
        raise OSError(ctypes.get_errno(), "capset")
