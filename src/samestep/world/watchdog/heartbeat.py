"""Carries signs of life to the other ranks and their news back, in a thread of its own, since any call may hang.

It goes through the store; files in the run directory serve whoever looks afterwards, or when the store is gone.
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
from samestep.core.records import Json, read_json
from samestep.core.rundir import RunDir
from samestep.world.watchdog.blame import Report

BETWEEN_FILES = 5.0
"""Seconds between two signs of life in the run directory."""
OUTDATED = 2 * BETWEEN_FILES
"""Seconds after which one that was not renewed counts as silence."""
HASTE = 0.1
"""Seconds between two exchanges once a verdict is there."""
ANSWER = timedelta(seconds=5)
_BEAT = "samestep/watch/beat/{}"
_STALL = "samestep/watch/stall"
_READY = "samestep/watch/ready"


class HeartbeatExchange:
    """One rank's exchange with the others. What it brings lies in its attributes; nobody waits for it."""

    def __init__(self, store: Any, rundir: RunDir, rank: int, size: int, every: float, failed: str) -> None:
        """`store` is None in a lone process; `failed` is the key of a failing rank's word."""
        self._store = _own_connection(store)
        self._rundir, self.rank, self._size, self._every, self._failed = rundir, rank, size, every, failed
        self.outgoing: list[Report] = []
        """The newest sign of life of each lane; the main one first."""
        self.wanted = False
        """Whether to bring the signs of life of all ranks."""
        self.others: list[list[Report]] = []
        """Theirs, by rank; empty for one that never gave any."""
        self.proposal: dict[str, Json] | None = None
        """The verdict that this rank reached."""
        self.verdict: dict[str, Json] | None = None
        """The verdict that stands, the first of any rank."""
        self.failure: dict[str, Json] | None = None
        """The word of a rank that failed."""
        self.leaves = False
        """This rank knows the verdict and is about to end."""
        self.all_leave = store is None
        """So are all others."""
        self._said_so = False
        self._answered, self._filed = time.monotonic(), -BETWEEN_FILES
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="watchdog's post", daemon=True)

    def start(self) -> None:
        """Begin, with a first sign of life: some get stuck before there would be a second."""
        self._once()
        self._thread.start()

    def close(self) -> None:
        """Stop; a call that hangs is left behind."""
        self._stop.set()
        self._thread.join(2.0)

    @property
    def silence(self) -> float:
        """Seconds since the store answered; 0 in a lone process."""
        return time.monotonic() - self._answered if self._store is not None else 0.0

    def _work(self) -> None:
        while not self._stop.wait(HASTE if self.proposal or self.verdict else self._every):
            self._once()

    def _once(self) -> None:
        with suppress(Exception):  # a store that is gone: how long it has been silent is all that counts
            if self._store is not None:
                self._exchange()
                self._answered = time.monotonic()
        with suppress(OSError):
            self._file()

    def _file(self) -> None:
        now = time.monotonic()
        if self.outgoing and now - self._filed >= BETWEEN_FILES:
            self._filed = now
            put_report(self._rundir.heartbeat(self.rank), self.outgoing[0])

    def _exchange(self) -> None:
        self._store.set(_BEAT.format(self.rank), json.dumps(self.outgoing))
        if self.proposal and not self.verdict:
            self._store.compare_set(_STALL, "", json.dumps(self.proposal))
            self._store.compare_set(self._failed, "", json.dumps(self._word(self.proposal)))
        self.verdict = self.verdict or self._read(_STALL)
        self.failure = self.failure or self._read(self._failed)
        if self.wanted:
            self.others = [self._read(_BEAT.format(rank)) or [] for rank in range(self._size)]
        if self.leaves:
            self.all_leave = self._store.add(_READY, 0 if self._said_so else 1) >= self._size
            self._said_so = True

    def _word(self, proposal: dict[str, Json]) -> dict[str, Json]:
        """For a rank whose connection breaks before it hears of the verdict."""
        text = proposal["sentence"]
        return {"rank": self.rank, "host": socket.gethostname(), "text": text, "code": EXIT_STALLED}

    def _read(self, key: str) -> Any:
        return json.loads(self._store.get(key)) if self._store.check([key]) else None


def put_report(path: Path, report: Report) -> None:
    """Replace a small file; it is not synced to the disk, for it is worth nothing after a crash of the machine."""
    fresh = path.with_name(f".{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh.write_text(json.dumps(report), encoding="utf-8")
    fresh.replace(path)


def filed_reports(rundir: RunDir, size: int) -> list[Report]:
    """What ranks last left in the run directory; `alive`: about as lately as the last of them.

    Times are those of the disk, which is one for all who share it.
    """
    found = []
    for path in (rundir.heartbeat(rank) for rank in range(size)):
        with suppress(OSError, ValueError):
            report = read_json(path)
            found += [(path.stat().st_mtime, report)] if report else []
    newest = max((written for written, _ in found), default=0.0)
    return [{**report, "alive": newest - written <= OUTDATED} for written, report in found]


def _own_connection(store: Any) -> Any:
    """To the same store: calls over one connection wait for each other, also for one that hangs."""
    if store is None:
        return None
    own = store.clone()
    own.set_timeout(ANSWER)
    return own
