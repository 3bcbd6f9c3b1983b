"""Heartbeats: sends what this rank does to the other ranks and reads what they send.

It runs in a thread of its own, since any call may hang. Heartbeats go through the store. They are also written to the
run directory, for `samestep why` and for when the store is gone.
"""

import json
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from samestep.core.errors import EXIT_STALLED
from samestep.core.json_files import Json, atomic_file, read_json
from samestep.core.rundir import RunDir
from samestep.world.authenticated_store import NotAuthentic
from samestep.world.watchdog.blame import Report

FILE_INTERVAL = 5.0
"""Seconds between two heartbeats in the run directory."""
FILE_MAX_AGE = 2 * FILE_INTERVAL
"""Seconds after which a heartbeat in the run directory counts as missed."""
FAST_INTERVAL = 0.1
"""Seconds between two exchanges once a stall was found."""
STORE_TIMEOUT = timedelta(seconds=5)
_HEARTBEAT_KEY = "samestep/watch/beat/{}"
_STALL_KEY = "samestep/watch/stall"
_READY_KEY = "samestep/watch/ready"


class HeartbeatExchange:
    """One rank's exchange with the others. The results are its attributes; no caller waits for them."""

    def __init__(self, store: Any, rundir: RunDir, rank: int, size: int, every: float, failure_key: str) -> None:
        """`store` is None in a lone process; `failure_key` has the report of the first rank that failed."""
        self._store = _own_connection(store)
        self._rundir, self.rank, self._size, self._every = rundir, rank, size, every
        self._failure_key = failure_key
        self.own: list[Report] = []
        """The newest report of each thread of this rank; the main one first."""
        self.fetch_all = False
        """Whether to read the heartbeats of all ranks."""
        self.by_rank: list[list[Report]] = []
        """The newest reports of all ranks; empty for one that never sent any."""
        self.proposed_stall: dict[str, Json] | None = None
        """The stall that this rank found."""
        self.agreed_stall: dict[str, Json] | None = None
        """The stall that counts: the first that any rank found."""
        self.failure: dict[str, Json] | None = None
        """The report of a rank that failed."""
        self.is_ending = False
        """This rank knows the stall and is about to end."""
        self.all_ending = store is None
        """So are all others."""
        self._is_counted_ready = False
        self._answered, self._written = time.monotonic(), -FILE_INTERVAL
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog heartbeats", daemon=True)

    def start(self) -> None:
        """Begin, with a first heartbeat at once: a rank may get stuck before there would be a second."""
        self._exchange_once()
        self._thread.start()

    def close(self) -> None:
        """Stop; a call that hangs is left behind."""
        self._stop.set()
        self._thread.join(2.0)

    @property
    def store_silence(self) -> float:
        """Seconds since the store answered; 0 in a lone process."""
        return time.monotonic() - self._answered if self._store is not None else 0.0

    def _run(self) -> None:
        while not self._stop.wait(FAST_INTERVAL if self.proposed_stall or self.agreed_stall else self._every):
            self._exchange_once()

    def _exchange_once(self) -> None:
        with suppress(Exception):  # a store that is gone: all that counts is for how long it has not answered
            if self._store is not None:
                self._exchange()
                self._answered = time.monotonic()
        with suppress(OSError):
            self._write_file()

    def _write_file(self) -> None:
        now = time.monotonic()
        if self.own and now - self._written >= FILE_INTERVAL:
            self._written = now
            write_heartbeat(self._rundir.heartbeat(self.rank), self.own[0])

    def _exchange(self) -> None:
        self._store.set(_HEARTBEAT_KEY.format(self.rank), json.dumps(self.own))
        if self.proposed_stall and not self.agreed_stall:
            self._store.compare_set(_STALL_KEY, "", json.dumps(self.proposed_stall))
            self._store.compare_set(self._failure_key, "", json.dumps(self._failure_report(self.proposed_stall)))
        self.agreed_stall = self.agreed_stall or self._read(_STALL_KEY)
        self.failure = self.failure or self._read(self._failure_key)
        if self.fetch_all:
            self.by_rank = [self._read(_HEARTBEAT_KEY.format(rank)) or [] for rank in range(self._size)]
        if self.is_ending:
            self.all_ending = self._store.add(_READY_KEY, 0 if self._is_counted_ready else 1) >= self._size
            self._is_counted_ready = True

    def _failure_report(self, stall: dict[str, Json]) -> dict[str, Json]:
        """For a rank whose connection breaks before it has read the stall."""
        text = stall["sentence"]
        return {"rank": self.rank, "host": socket.gethostname(), "text": text, "code": EXIT_STALLED}

    def _read(self, key: str) -> Any:
        """An entry; None where there is none, or a stranger's."""
        with suppress(NotAuthentic):
            return json.loads(self._store.get(key)) if self._store.check([key]) else None
        return None


def write_heartbeat(path: Path, report: Report) -> None:
    """Replace a small file. It is not synced to the disk, since it is not needed after a crash of the machine."""
    with atomic_file(path, sync=False) as file:
        file.write(json.dumps(report).encode())


def read_heartbeats(rundir: RunDir, size: int) -> list[Report]:
    """The last heartbeats in the run directory; `alive`: not much older than the newest of them.

    Times are those of the disk, so all ranks that share it compare the same clock.
    """
    found = []
    for path in (rundir.heartbeat(rank) for rank in range(size)):
        with suppress(OSError, ValueError):
            report = read_json(path)
            found += [(path.stat().st_mtime, report)] if report else []
    newest = max((written for written, _ in found), default=0.0)
    return [{**report, "alive": newest - written <= FILE_MAX_AGE} for written, report in found]


def _own_connection(store: Any) -> Any:
    """Another connection to the same store: calls over one connection wait for each other, even for one that hangs."""
    if store is None:
        return None
    own = store.clone()
    own.set_timeout(STORE_TIMEOUT)
    return own
