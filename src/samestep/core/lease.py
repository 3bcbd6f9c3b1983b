"""A lease on a run, beside its lock: some disks that several hosts share have locks that hold on one host only.

The holder writes a small file and counts up in it every few seconds. Whoever finds a lease that is not its own judges:

- of a process of this host, by its number and start time;
- of the same batch job on another host: the job was started again there, so the lease is taken over at once;
- of another host: by whether the count goes on. No clocks are compared; the observer waits by its own.

A lease is made by a link, so only one of several hosts makes it. It is renewed in the file that was opened and found
to be one's own: a holder that was suspended in between writes into the file that was replaced, not into the new one.
A holder that finds the lease of another process ends at once, since two processes must never write to one run.
"""

import json
import os
import secrets
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from samestep.core import processes
from samestep.core.errors import EXIT_USER, UserError, print_error
from samestep.core.exit_report import ExitReport
from samestep.core.output import print_safely
from samestep.core.safe_files import open_file, open_new, temporary_name
from samestep.core.typed_json import from_json

INTERVAL = 2.0
"""Seconds between heartbeats."""
STILL = 15.0
"""Seconds without a heartbeat after which a holder on another host counts as gone."""
_SETTLED = 1.0
"""Seconds after which it is clear which of several hosts has taken over a lease."""
_LENGTH = 1024
"""Bytes of the file, always the same: so that it can be renewed in place, also on a full disk."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lease, and how often it was renewed."""

    host: str
    pid: int
    machine: str
    """The boot of the host, and the container: where numbers of processes mean the same."""
    started: str
    """When the process began."""
    job: str
    """The batch job; empty without one."""
    token: str
    """Of this lease alone."""
    count: int = 0

    @classmethod
    def here(cls) -> "Holder":
        pid = os.getpid()
        started, job = processes.start_time(pid), job_id()
        return cls(socket.gethostname(), pid, machine_id(), started, job, secrets.token_hex(8))

    @classmethod
    def read(cls, path: Path) -> "Holder | None":
        """Who holds the lease at `path`; None if nobody does. Raises ValueError for what `parse` refuses."""
        try:
            os.listdir(path.parent)  # so that a network disk asks its server
            return cls.parse(path.read_bytes()[:_LENGTH])
        except FileNotFoundError:
            return None

    @classmethod
    def parse(cls, content: bytes) -> "Holder":
        """The holder in a file; ValueError for one that is no lease, or is just being written."""
        try:
            return from_json(cls, json.loads(content))
        except RecursionError:
            raise ValueError("no lease") from None

    @classmethod
    def read_complete(cls, path: Path) -> "Holder | None":
        """The same, once it is written; None too for a file that is no lease."""
        for _ in range(5):
            try:
                return cls.read(path)
            except ValueError:
                time.sleep(0.1)
        return None

    @property
    def is_alive_here(self) -> bool:
        """Whether this process of this host is alive."""
        gone = processes.state(self.pid) == "gone" or processes.start_time(self.pid) != self.started
        return not gone

    def content(self) -> bytes:
        return json.dumps(asdict(self)).encode().ljust(_LENGTH - 1) + b"\n"

    def __str__(self) -> str:
        return json.dumps({"host": self.host, "pid": self.pid})


def machine_id() -> str:
    """What is the same for all processes that see each other's numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def job_id() -> str:
    """The batch job of this process, which keeps its number when it is started again; empty without one."""
    return next((f"{name}={os.environ[name]}" for name in ("SLURM_JOB_ID", "PBS_JOBID") if os.environ.get(name)), "")


def in_use(folder: Path, holder: str) -> UserError:
    """The refusal of a run that another process writes to."""
    return UserError(
        f"the run directory {folder} is in use by a live run ({holder}); "
        "wait for it, stop it, or choose another name with name=..."
    )


class Lease:
    """A lease that this process holds until `release`, or until another one takes it."""

    def __init__(self, path: Path) -> None:
        self._path, self._own = path, Holder.here()
        self._take()
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """End the heartbeats and remove the file, if it is still this process's."""
        self._released.set()
        self._thread.join(INTERVAL)
        with suppress(OSError, ValueError):
            found = Holder.read(self._path)
            if found is not None and found.token == self._own.token:
                self._path.unlink(missing_ok=True)

    def _take(self) -> None:
        if self._create():
            return
        found = Holder.read_complete(self._path)
        if found is None or not self._must_watch(found):
            self._replace()
            return
        self._watch(found)
        self._replace()
        time.sleep(_SETTLED)  # another host may have waited for the same
        winner = Holder.read_complete(self._path)
        if winner is not None and winner.token != self._own.token:
            raise in_use(self._path.parent, str(winner))

    def _must_watch(self, found: Holder) -> bool:
        """Whether only time can tell if the holder is alive; raises UserError if it is known to be."""
        if found.machine == self._own.machine:
            if found.pid != self._own.pid and found.is_alive_here:
                raise in_use(self._path.parent, str(found))
            return False
        return not found.job or found.job != self._own.job

    def _watch(self, found: Holder) -> None:
        """Wait for a heartbeat; raises UserError if there is one."""
        print_safely(
            f"samestep: {self._path.parent} was last used by process {found.pid} on {found.host}; waiting {STILL:g} s "
            "to see whether that is still running",
            sys.stderr,
        )
        end = time.monotonic() + STILL
        while time.monotonic() < end:
            time.sleep(min(0.5, STILL / 10))
            try:
                now = Holder.read(self._path)
            except ValueError:  # it is being written
                continue
            if now is None:
                return
            if now != found:
                raise in_use(self._path.parent, str(now))

    def _create(self) -> bool:
        """Make the lease, unless there is one."""
        temporary = self._write_temporary()
        try:
            os.link(temporary, self._path)
        except FileExistsError:
            return False
        except OSError:  # a disk without links
            if self._path.exists():
                return False
            os.replace(temporary, self._path)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _replace(self) -> None:
        os.replace(self._write_temporary(), self._path)

    def _write_temporary(self) -> Path:
        temporary = temporary_name(self._path)
        try:
            with open_new(temporary) as file:
                file.write(self._own.content())
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _keep(self) -> None:
        """Renew the lease until it is released, or lost: then this process ends."""
        while not self._released.wait(INTERVAL):
            with suppress(OSError, UserError):  # it may succeed the next time; one that was removed is not made again
                taken_by = self._renew()
                if taken_by is not None and taken_by.pid == self._own.pid and taken_by.machine == self._own.machine:
                    return  # this process has opened the run again
                if taken_by is not None:
                    self._end(taken_by)

    def _renew(self) -> Holder | None:
        """Count up. Returns the holder if another process has taken the lease."""
        with open_file(self._path, "rb+") as file:
            try:
                found = Holder.parse(file.read(_LENGTH))
            except ValueError:  # damaged, and still in this process's name
                found = self._own
            if found.token != self._own.token:
                return found
            self._own = replace(self._own, count=self._own.count + 1)
            file.seek(0)
            file.write(self._own.content())
        return None

    def _end(self, taken_by: Holder) -> None:
        """End this process at once, also its threads: whatever it wrote from now on would damage the other's run."""
        error = UserError(
            f"process {taken_by.pid} on {taken_by.host} has taken over the run directory {self._path.parent}, since "
            "this one gave no sign of life; let that one go on, or stop it and resume"
        )
        if not ExitReport.from_error(error, EXIT_USER, plain=True).write(os.environ):
            print_error(str(error))
        os._exit(EXIT_USER)
