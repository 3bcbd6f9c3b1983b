"""The watchdog: a thread that looks at this rank once a second, and ends a run that does not go on.

A rank that made no progress for longer than its limit looks at all ranks, through the store or else through the run
directory. Whoever sends no heartbeat, or is behind in collectives, is the culprit (blame.py). The first verdict stands
for all. Every rank then writes where its threads are, the lowest rank alive says one sentence, and all end
(ending.py).
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
from samestep.world.watchdog import stack_dump
from samestep.world.watchdog.activity import Lane
from samestep.world.watchdog.blame import Report, Stall, judge
from samestep.world.watchdog.ending import end_after, end_stalled
from samestep.world.watchdog.heartbeat import OUTDATED, HeartbeatExchange, filed_reports, put_report
from samestep.world.watchdog.limits import ACTIVITIES, WatchdogConfig
from samestep.world.watchdog.stack_dump import BlackBox
from samestep.world.world import FAILURE, World

UNHEARD = 5.0
"""Seconds without a sign of life after which a rank counts as silent, and the store as gone."""

AT_ONCE, TURN, LAST_TURN = 8, 1.0, 12.0
"""So many ranks look at all others at once, and so many seconds later the next ones: a thousand who ask for a thousand
answers at the same time would get none."""


class Suspicion:
    """What a rank makes of its own lateness, look by look."""

    def __init__(self, world: World, rundir: RunDir, post: HeartbeatExchange) -> None:
        self._world, self._rundir, self._post = world, rundir, post
        self._turn = min(LAST_TURN, TURN * (world.rank // AT_ONCE))
        self._heard: dict[int, int] = {}  # each rank's look when listening began
        self._since: float | None = None  # when that was

    def drop(self) -> None:
        """Nobody is late here any more."""
        self._post.wanted, self._post.others, self._since = False, [], None

    def judge(self, mine: Report, now: float) -> Stall | None:
        """What keeps this rank from going on; None: nothing to blame yet, or it is not known yet."""
        if self._world.size == 1:
            return judge(mine, [{**mine, "alive": True}])
        if mine["seconds"] < mine["limit"] + self._turn:
            return None
        if self._post.silence > UNHEARD:
            return self._judge_by_files(mine)
        self._post.wanted = True
        if self._since is None:
            if self._post.others:
                self._heard = {rank: _look(found) for rank, found in enumerate(self._post.others)}
                self._since = now
            return None
        if now - self._since < UNHEARD:
            return None
        reports = [self._told_by(rank, found, mine) for rank, found in enumerate(self._post.others)]
        self.drop()  # listens anew, unless this is a verdict
        return judge(mine, reports)

    def _told_by(self, rank: int, found: list[Report], mine: Report) -> Report:
        """What a rank does in the lane that is late here, or else in its main one, and whether it was just heard."""
        if rank == self._world.rank:
            return {**mine, "alive": True}
        if not found:
            return {**mine, "rank": rank, "host": "an unknown host", "where": "", "collectives": {}, "alive": False}
        same = [report for report in found if report["lane"] == mine["lane"]]
        return self._examine({**(same or found)[0], "alive": _look(found) > self._heard[rank]})

    def _examine(self, report: Report) -> Report:
        """What can be seen from here of a rank that may be silent, beyond what it told."""
        state = stack_dump.state_of(report["pid"]) if report["host"] == self._world.host else ""
        if state:
            return {**report, "alive": False, "state": state}
        if report["alive"]:
            return report
        with suppress(OSError):
            stacks, beat = self._rundir.stack_dump(report["rank"]), self._rundir.heartbeat(report["rank"])
            places = stack_dump.dumped_places(stacks.read_text(), report["thread"])
            if places and stacks.stat().st_mtime > beat.stat().st_mtime:  # written after its last sign of life
                return {**report, "state": "held", "where": stack_dump.relevant(places)}
        return {**report, "state": ""}

    def _judge_by_files(self, mine: Report) -> Stall | None:
        """The store does not answer: what the run directory tells, where it is shared, and what is known here."""
        filed = filed_reports(self._rundir, self._world.size)
        others = [self._examine(report) for report in filed if report["rank"] != self._world.rank]
        reports = [*others, {**mine, "alive": True}]
        if not all(report["alive"] for report in others):
            return judge(mine, reports)
        if self._post.silence < OUTDATED + UNHEARD:  # files of the one that holds it may still look fresh
            return None
        return Stall(
            f"the store in which ranks meet has not answered for {self._post.silence:.0f} s, so the process "
            f"that holds it hangs or its host is out of reach; rank {mine['rank']} on {mine['host']} waits"
            f"{' at ' + mine['where'] if mine['where'] else ''} (step {mine['step']} of stage {mine['stage']!r})",
            None,
            reports,
        )


def _look(found: list[Report]) -> int:
    return int(found[0]["look"]) if found else 0


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

    def __init__(self, world: World, rundir: RunDir, settings: WatchdogConfig) -> None:
        settings.check()
        self._world, self._rundir, self._settings, self._watch = world, rundir, settings, world.watch
        self._post = HeartbeatExchange(world.store, rundir, world.rank, world.size, TICK, FAILURE)
        self._suspicion = Suspicion(world, rundir, self._post)
        self._counts: dict[Lane, _Count] = {}
        self._shortest = min(map(settings.seconds, ACTIVITIES))
        self._looks, self._ends, self._failure_seen = 0, False, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._box = BlackBox(self._rundir.stack_dump(self._world.rank), alone=self._world.size == 1)
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
            put_report(self._rundir.heartbeat(self._world.rank), self._look(0.0)[0])

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
            if not late or stack_dump.debugged(late[-1]["thread"]):
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
            reports.append(
                stack_dump.report(self._watch, lane, seconds, limit, self._world.rank) | {"look": self._looks}
            )
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
