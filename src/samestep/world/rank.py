"""One process of a launch, and how all of them meet through the launcher's store.

The store is there before any process group, and a rank that waits in it learns at once that another one failed.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from samestep.core.errors import EXIT_FAILURE, RunFailed
from samestep.core.json_files import Json
from samestep.world.failures import FAILURE_KEY, PeerFailed, failure_sentence
from samestep.world.missing_ranks import wait_for_start
from samestep.world.rank_discovery import RankInfo


@dataclass
class Rank:
    """This process among its peers. Without a store it is alone, or they meet otherwise."""

    rank_info: RankInfo
    """What the launcher said: rank, size, place on its node."""
    timeout: timedelta = field(default=timedelta(minutes=10), kw_only=True)
    store: Any = field(default=None, kw_only=True)
    _barriers: int = field(default=0, repr=False, kw_only=True)

    @property
    def rank(self) -> int:
        """This process's number among all."""
        return self.rank_info.rank

    @property
    def size(self) -> int:
        """How many processes there are."""
        return self.rank_info.size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone prints and writes."""
        return self.rank == 0

    @property
    def host(self) -> str:
        """The name of this machine."""
        return socket.gethostname()

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Local work that may fail, then a barrier: if it failed on any rank, every rank raises that failure."""
        try:
            yield
        except Exception as error:
            self.report_failure(error)
            raise
        if self.store is not None:
            self.meet(f"finished {what}")

    def meet(self, done: str) -> None:
        """Wait until every rank is here, or one has reported a failure. It needs no process group."""
        self._barriers += 1
        keys = [f"samestep/barrier/{self._barriers}/{rank}" for rank in range(self.size)]
        passed, otherwise = f"samestep/barrier/{self._barriers}", f"not every rank {done}"
        self.store.set(keys[self.rank], "")
        if self.is_main and self._barriers == 1:
            self._wait_for_start(keys)
        if self.is_main:
            self._wait_for(keys, otherwise)
            self.store.set(passed, "")
        self._wait_for([passed], otherwise)

    def _wait_for_start(self, keys: list[str]) -> None:
        """On rank 0, where ranks meet for the first time: ranks that never started are named."""
        try:
            wait_for_start(
                keys, self.store, self.rank_info, os.environ, self.timeout.total_seconds(), self.raise_peer_failure
            )
        except RunFailed as error:
            self.report_failure(error)
            raise

    def _wait_for(self, keys: list[str], otherwise: str) -> list[bytes]:
        """The values of these keys in the store, once all are there; `otherwise` says what did not happen in time."""
        end = time.monotonic() + self.timeout.total_seconds()
        while not self.store.check(keys):
            self.raise_peer_failure()
            if time.monotonic() > end:
                raise PeerFailed(f"{otherwise} within {self.timeout}", EXIT_FAILURE)
            time.sleep(0.005)
        return self.store.multi_get(keys)

    def share_through_store(self, key: str, value: Json) -> Json:
        """Rank 0's value through the store: for work inside `together`, where rank 0 may fail first."""
        if self.store is None:
            return value
        name = f"samestep/share/{key}"
        if self.is_main:
            self.store.set(name, json.dumps(value))
            return value
        return json.loads(self._wait_for([name], f"rank 0 did not share {key!r}")[0])

    def report_failure(self, error: BaseException) -> None:
        """Report to the peers why this rank ends; only the first report of any rank counts."""
        if self.store is None or isinstance(error, PeerFailed):
            return
        code = getattr(error, "exit_code", EXIT_FAILURE)
        report = {"rank": self.rank, "host": self.host, "text": failure_sentence(error), "code": code}
        try:
            self.store.compare_set(FAILURE_KEY, "", json.dumps(report))
        except Exception:  # the process that holds the store is gone, and with it the peers
            return

    def raise_peer_failure(self) -> None:
        """Raise what another rank reported, if one did."""
        if self.store is None:
            return
        try:
            report = json.loads(self.store.get(FAILURE_KEY)) if self.store.check([FAILURE_KEY]) else None
        except Exception:
            return
        if report and report["rank"] != self.rank:
            raise PeerFailed(f"rank {report['rank']} on {report['host']} failed: {report['text']}", report["code"])
