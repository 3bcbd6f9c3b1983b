"""`--hosts`: the first host's launcher starts those of the other hosts by ssh, with the user's keys and configuration.

What a launcher over there has to know, also the secret of the launch, goes through ssh's standard input: nobody can
read that on either machine. It stays open, and its end tells the launcher over there that this one is gone.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from samestep.core import launch_env
from samestep.core.child_python import import_variables, python_command
from samestep.core.errors import UserError
from samestep.launching.nodes.options import NodeOptions
from samestep.launching.terminal import show_line

_SSH = ("-T", "-a", "-x", "-oBatchMode=yes", "-oClearAllForwardings=yes", "-oConnectTimeout=15")
_ALIVE = ("-oServerAliveInterval=5", "-oServerAliveCountMax=3")
"""A host that is out of reach ends its ssh, which can then be started again."""
_FIND_TIMEOUT = 20.0
"""Seconds in which a launcher that was started by ssh must reach the first host, whose port is open already."""
_AGAIN_AFTER = 5.0
"""Seconds between attempts to start a host again that was lost."""
_END_TIMEOUT = 5.0
_KEPT_LINES = 60
_SHARED = ("OMP_NUM_THREADS",)
"""Variables that are the same on every host, beside those of imports."""


@dataclass(frozen=True)
class Request:
    """What a launcher that is started by ssh does."""

    secret: str
    args: Sequence[str]
    """As in Launcher."""
    nproc: str
    grace: float
    nodes: NodeOptions


class RemoteLaunchers:
    """The launchers of all hosts but the first, each the child of an ssh."""

    def __init__(self, options: NodeOptions, args: Sequence[str], grace: float) -> None:
        if options.hosts[1:] and shutil.which("ssh") is None:
            raise UserError("--hosts needs ssh, which is not installed here; install it, or use --nodes")
        self._hosts: dict[int, _Host] = {}
        for rank, name in enumerate(options.hosts[1:], start=1):
            own = replace(options, hosts=(), by_ssh=True, rank=rank, join_timeout=_FIND_TIMEOUT)
            secret = os.environ[launch_env.SECRET]
            self._hosts[rank] = _Host(name, Request(secret, args, options.hosts_nproc, grace, own))

    def keep_running(self, present: Container[int | None], *, again: bool) -> None:
        """Start the launchers that are not yet `present`, by node rank; with `again`, also those that have ended."""
        for rank, host in self._hosts.items():
            host.takes_part(rank in present)
            if rank not in present and (not host.is_started or (again and host.can_start_again)):
                host.start()

    @property
    def problem(self) -> str:
        """Why a host takes no part, as a sentence; empty if none failed."""
        return next((problem for host in self._hosts.values() if (problem := host.problem)), "")

    def close(self) -> None:
        """Wait until all have ended, but not for long."""
        for host in self._hosts.values():
            host.release()
        end = time.monotonic() + _END_TIMEOUT
        for host in self._hosts.values():
            host.close(end)


class _Host:
    """One of them."""

    def __init__(self, name: str, request: Request) -> None:
        self._name, self._request = name, request
        self._process: subprocess.Popen[bytes] | None = None
        self._copying: threading.Thread | None = None
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._present = False
        self._started_at = 0.0
        self._lock = threading.Lock()

    @property
    def is_started(self) -> bool:
        return self._process is not None

    @property
    def can_start_again(self) -> bool:
        """Whether it has ended and was not started a moment ago."""
        return self._ended and time.monotonic() - self._started_at > _AGAIN_AFTER

    @property
    def _ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    @property
    def problem(self) -> str:
        """Why it ended and takes no part."""
        if self._present or not self._ended:
            return ""
        assert self._copying is not None
        self._copying.join(1.0)  # it may not have read the last line
        last = next((line.strip() for line in reversed(self._last) if line.strip()), "it printed nothing")
        return (
            f"{self._name} could not be started by ssh ({last.removeprefix('samestep: ')}); check that "
            f"`ssh {self._name}` works without a password, and that {sys.executable} and {_folder()} are there too"
        )

    def start(self) -> None:
        """Begin an ssh that runs the launcher."""
        shared = {name: os.environ[name] for name in _SHARED if name in os.environ} | import_variables()
        variables = [f"{name}={value}" for name, value in shared.items()]
        python = ["env", *variables, *python_command("-m", "samestep.launching.remote")]
        command = f"cd {shlex.quote(_folder())} && exec {shlex.join(python)}"
        self._last.clear()
        self._started_at = time.monotonic()
        self._process = subprocess.Popen(
            ["ssh", *_SSH, *_ALIVE, "--", self._name, command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if not name.startswith("SAMESTEP_")},
            start_new_session=True,  # a terminal's Ctrl-C must not end it: the ranks there have to save first
        )
        self._copying = threading.Thread(target=self._serve, args=(self._process,), name="ssh", daemon=True)
        self._copying.start()

    def takes_part(self, present: bool) -> None:
        """Once it does, what it prints is shown; before, only the end of that, if it fails."""
        with self._lock:
            if present and not self._present:
                for line in self._last:
                    show_line(f"[{self._name}] {line}")
            self._present = present

    def release(self) -> None:
        """Have it end now if it takes no part."""
        if not self._present:
            self._close_stdin()

    def close(self, end: float) -> None:
        """Wait for its end; end it by force if that comes late."""
        process = self._process
        if process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, end - time.monotonic()))
        self._close_stdin()
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        assert self._copying is not None
        self._copying.join(1.0)

    def _serve(self, process: subprocess.Popen[bytes]) -> None:
        """Send the request, and pass on what comes back."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError, ValueError):
            process.stdin.write(json.dumps(asdict(self._request)).encode() + b"\n")
            process.stdin.flush()
        for data in process.stdout:
            line = data.decode(errors="replace").rstrip()
            with self._lock:
                self._last.append(line)
                if self._present:
                    show_line(f"[{self._name}] {line}")

    def _close_stdin(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):
                self._process.stdin.close()


def _folder() -> str:
    """The working folder by the name that the user's shell gave it: what a link leads to may differ between hosts."""
    named = os.environ.get("PWD", "")
    return named if os.path.isabs(named) and os.path.samefile(named, ".") else os.getcwd()
