"""The watchdog: a thread that looks at this rank once a second, and ends a run that does not go on.

A rank that made no progress for longer than its limit looks at all ranks (suspicion.py). Whoever is not heard any more,
or is behind in collectives, is the culprit (culprit.py). The first verdict stands for all. Every rank then writes where
its threads are, the lowest rank alive says one sentence, and all end (ending.py).
"""

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from samestep.core.records import Json
from samestep.core.rundir import RunDir
from samestep.world.watch import sight
from samestep.world.watch.activity import Lane
from samestep.world.watch.blackbox import BlackBox
from samestep.world.watch.culprit import Report, Stall
from samestep.world.watch.ending import end_after, end_stalled
from samestep.world.watch.post import Post, put_report
from samestep.world.watch.settings import ACTIVITIES, Watching
from samestep.world.watch.suspicion import UNHEARD, Suspicion
from samestep.world.world import FAILURE, World

logger = logging.getLogger(__name__)
TICK = 1.0
"""Seconds between two looks."""
PEER = 15.0
"""Seconds without progress that a rank has to end by itself once another one has failed."""


@dataclass
class _Count:
    """How long a lane has stood still. Only time in which this thread runs counts: a suspended job does not hang."""

    moves: int = -1
    seconds: float = 0.0

    def look(self, lane: Lane, passed: float) -> float:
        """Seconds without progress."""
        self.seconds = self.seconds + passed if lane.moves == self.moves else 0.0
        self.moves = lane.moves
        return self.seconds


class Watchdog:
    """Watches this rank while it is entered."""

    def __init__(self, world: World, rundir: RunDir, settings: Watching) -> None:
        settings.check()
        self._world, self._rundir, self._settings, self._watch = world, rundir, settings, world.watch
        self._post = Post(world.store, rundir, world.rank, world.size, TICK, FAILURE)
        self._suspicion = Suspicion(world, rundir, self._post)
        self._counts: dict[Lane, _Count] = {}
        self._shortest = min(map(settings.seconds, ACTIVITIES))
        self._looks, self._ends, self._failure_seen = 0, False, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._box = BlackBox(self._rundir.stacks(self._world.rank), alone=self._world.size == 1)
        self._arm(self._look(0.0)[0])
        self._post.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(None if self._ends else 2 * TICK)  # a verdict comes before whatever the main thread met
        self._box.close()
        self._post.close()
        with suppress(OSError):
            put_report(self._rundir.beat(self._world.rank), self._look(0.0)[0])

    def _run(self) -> None:
        try:
            self._watch_on()
        except Exception:  # a run must not be lost to its watchdog
            logger.exception("the watchdog has failed; the run goes on without it")

    def _watch_on(self) -> None:
        before = time.monotonic()
        while not self._stop.wait(TICK):
            now = time.monotonic()
            reports = self._look(passed=min(now - before, 2 * TICK))
            before = now
            self._arm(reports[0])
            self._follow_others(reports[0], now)
            late = [report for report in reports if report["seconds"] > report["limit"]]
            if not late or sight.debugged(late[-1]["thread"]):
                self._suspicion.drop()
            elif stall := self._suspicion.judge(late[-1], now):  # the last: the main thread may wait for one beside it
                self._conclude(stall)

    def _arm(self, main: Report) -> None:
        """Stacks that are written too early do no harm, unless that ends the process."""
        self._box.arm(2 * TICK + (main["limit"] if self._world.size == 1 else self._shortest))

    def _follow_others(self, main: Report, now: float) -> None:
        """End where another rank reached a verdict, or failed a while ago and this one stands still ever since."""
        if self._post.verdict:
            self._end(self._post.verdict)
        failure = self._post.failure
        if failure is None or failure["rank"] == self._world.rank:
            return
        self._failure_seen = self._failure_seen or now
        if min(main["seconds"], now - self._failure_seen) > PEER:
            end_after(failure, self._post, self._rundir, self._box)

    def _look(self, passed: float) -> list[Report]:
        """What each lane does now, the main one first; lanes that ended are forgotten."""
        self._looks += 1
        self._counts = {lane: self._counts.get(lane, _Count()) for lane in list(self._watch.lanes)}
        reports = []
        for lane, count in self._counts.items():
            seconds, limit = count.look(lane, passed), self._settings.seconds(lane.activity)
            reports.append(sight.report(self._watch, lane, seconds, limit, self._world.rank) | {"look": self._looks})
        self._post.outgoing = reports
        return reports

    def _conclude(self, stall: Stall) -> None:
        """Let all ranks know, unless another's verdict came first; a store that hangs is not waited for."""
        self._post.proposal = stall.to_json()
        end = time.monotonic() + UNHEARD
        while self._world.size > 1 and self._post.verdict is None and time.monotonic() < end:
            time.sleep(0.05)
        self._end(self._post.verdict or self._post.proposal)

    def _end(self, verdict: dict[str, Json]) -> None:
        self._ends = True
        end_stalled(verdict, self._post, self._rundir, self._box)
