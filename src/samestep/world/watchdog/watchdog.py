"""The watchdog: a thread that checks this rank once a second, and ends a run that hangs.

A rank that made no progress for longer than its limit reads the heartbeats of all ranks, from the store or else from
the run directory. A rank that sends no heartbeat, or is behind in collectives, is the culprit (blame.py). The first
stall that any rank finds counts for all. Every rank then writes where its threads are, the lowest rank alive prints one
sentence, and all end (ending.py).

Limits are minutes. Long before, a gap of many times what is usual for the activity is reported in the same way, once,
and the run goes on: whoever watches it need not wait for the limit.

No other rank waits for a lone process. As long as that computes, it is reported at its limit, and ended much later.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from samestep.core import processes
from samestep.core.json_files import Json
from samestep.core.logs import PRINTED
from samestep.core.output import print_safely
from samestep.core.rundir import RunDir
from samestep.core.terminal_lines import hand_over
from samestep.world.activity import ThreadActivity
from samestep.world.failures import FAILURE_KEY
from samestep.world.source_lines import relevant_line
from samestep.world.watchdog import stack_dump
from samestep.world.watchdog.blame import Report, Stall, find_stall
from samestep.world.watchdog.ending import end_after_failure, end_stalled_run
from samestep.world.watchdog.heartbeat import FILE_MAX_AGE, HeartbeatExchange, read_heartbeats, write_heartbeat
from samestep.world.watchdog.limits import ACTIVITIES, WatchdogConfig
from samestep.world.watchdog.stack_dump import StackDumpFile
from samestep.world.world import World

PERIOD = 3.0
"""Seconds over which it is decided whether a thread computes."""
LEAST_SHARE = 0.02
"""A thread computes if it gets this share of a core: little, since a core may be shared by many."""


def cpu_seconds(activity: ThreadActivity) -> float:
    """CPU time that a thread has used; for the main one that of the whole process and of its data workers.

    Without that of threads that only look after the process: this one, heartbeats, leases, a progress bar. All of them
    are daemons.
    """
    if activity.name != "main":
        return processes.thread_cpu_seconds(activity.native_id)
    own = time.process_time() + sum(map(processes.cpu_seconds, processes.children(os.getpid())))
    daemons = [thread.native_id for thread in threading.enumerate() if thread.daemon and thread.native_id is not None]
    return own - sum(map(processes.thread_cpu_seconds, daemons))


class CpuUse:
    """How much a thread has computed since its last progress."""

    def __init__(self, activity: ThreadActivity, clock: Callable[[ThreadActivity], float] = cpu_seconds) -> None:
        self._activity, self._clock = activity, clock
        self._before = clock(activity)
        self._passed = self._used = 0.0  # in the present period
        self.computed = 0.0
        """Seconds of CPU time, where several cores at the same time count as one."""
        self.asleep = 0.0
        """Seconds since it computed."""

    def forget(self) -> None:
        """It made progress."""
        self._passed = self._used = self.computed = self.asleep = 0.0

    def update(self, passed: float) -> None:
        """Some time has passed without progress."""
        now = self._clock(self._activity)
        used, self._before = max(0.0, now - self._before), now
        self._passed, self._used = self._passed + passed, self._used + used
        self.computed += min(used, passed)
        self.asleep += passed
        if self._passed >= PERIOD:
            if self._used >= LEAST_SHARE * self._passed:
                self.asleep = 0.0
            self._passed = self._used = 0.0


logger = logging.getLogger(__name__)
TICK = 1.0
"""Seconds between two checks."""
HEARTBEAT_TIMEOUT = 5.0
"""Seconds without a heartbeat after which a rank counts as silent, and without an answer the store as gone."""
STACKS_AFTER = 10.0
"""Seconds after which a rank that holds its interpreter has its stacks written, for the others to read."""
PEER_FAILURE_TIMEOUT = 15.0
"""Seconds without progress that a rank has to end by itself once another one has failed."""
COMPUTING_LIMITS = 10.0
"""For so many limits a lone process may compute without progress. Only CPU time counts, which passes slowly on a
machine that others use too."""
RANKS_AT_ONCE, DELAY, MAX_DELAY = 8, 1.0, 12.0
"""So many ranks read the heartbeats of all others at once, and the next ones so many seconds later, up to a maximum: if
a thousand ranks asked for a thousand heartbeats at the same time, none would get an answer."""


class StallDetector:
    """Finds out, check by check, whether the run hangs when this rank is late."""

    def __init__(self, world: World, rundir: RunDir, heartbeats: HeartbeatExchange) -> None:
        self._world, self._rundir, self._heartbeats = world, rundir, heartbeats
        self._delay = min(MAX_DELAY, DELAY * (world.rank // RANKS_AT_ONCE))
        self._first_ticks: dict[int, int] = {}  # the tick of each rank's heartbeat when reading began
        self._since: float | None = None  # when that was

    def reset(self) -> None:
        """This rank is not late any more."""
        self._heartbeats.fetch_all, self._heartbeats.by_rank, self._since = False, [], None

    def check(self, own: Report, now: float, *, early: bool = False) -> Stall | None:
        """The stall that keeps this rank from going on; None: nothing hangs, or it is not known yet.

        `early`: by what is usual, not by the limits.
        """
        if early:
            own = _by_what_is_usual(own)
        if self._world.size == 1:
            return find_stall(own, [{**own, "alive": True}])
        if own["seconds"] < own["limit"] + self._delay:
            return None
        if self._heartbeats.store_silence > HEARTBEAT_TIMEOUT:
            return self._check_files(own)
        self._heartbeats.fetch_all = True
        if self._since is None:
            if self._heartbeats.by_rank:
                self._first_ticks = {rank: _tick(reports) for rank, reports in enumerate(self._heartbeats.by_rank)}
                self._since = now
            return None
        if now - self._since < HEARTBEAT_TIMEOUT:
            return None
        reports = [self._report_of(rank, reports, own) for rank, reports in enumerate(self._heartbeats.by_rank)]
        self.reset()  # begins again, unless this is a stall
        return find_stall(own, list(map(_by_what_is_usual, reports)) if early else reports)

    def _report_of(self, rank: int, reports: list[Report], own: Report) -> Report:
        """What a rank does in the thread that is late here, or else in its main one, and whether it is alive."""
        if rank == self._world.rank:
            return {**own, "alive": True}
        if not reports:
            return {**own, "rank": rank, "host": "an unknown host", "where": "", "collectives": {}, "alive": False}
        same = [report for report in reports if report["lane"] == own["lane"]]
        return self._with_state({**(same or reports)[0], "alive": _tick(reports) > self._first_ticks[rank]})

    def _with_state(self, report: Report) -> Report:
        """A report with what can be found out from here about a rank that may be silent."""
        state = processes.state(report["pid"]) if report["host"] == self._world.host else ""
        if state:
            return {**report, "alive": False, "state": state}
        if report["alive"]:
            return report
        with suppress(OSError):
            stacks, heartbeat = self._rundir.stack_dump(report["rank"]), self._rundir.heartbeat(report["rank"])
            stack = stack_dump.stack_from_dump(stacks.read_text(), report["thread"])
            if stack and stacks.stat().st_mtime > heartbeat.stat().st_mtime:  # written after its last heartbeat
                return {**report, "state": "held", "where": relevant_line(stack)}
        return {**report, "state": ""}

    def _check_files(self, own: Report) -> Stall | None:
        """The store does not answer: go by the heartbeats in the run directory, where it is shared."""
        written = read_heartbeats(self._rundir, self._world.size)
        others = [self._with_state(report) for report in written if report["rank"] != self._world.rank]
        reports = [*others, {**own, "alive": True}]
        if not all(report["alive"] for report in others):
            return find_stall(own, reports)
        silence = self._heartbeats.store_silence
        if silence < FILE_MAX_AGE + HEARTBEAT_TIMEOUT:  # the file of the rank that holds the store may still look fresh
            return None
        return Stall(
            f"the rendezvous store has not answered for {silence:.0f} s, so the process "
            f"that holds it hangs or its host is out of reach; rank {own['rank']} on {own['host']} waits"
            f"{' at ' + own['where'] if own['where'] else ''} (step {own['step']} of stage {own['stage']!r})",
            None,
            reports,
        )


def _by_what_is_usual(report: Report) -> Report:
    """A report whose limit is what is unusual for it; where nothing is usual, its limit stays."""
    return {**report, "limit": report.get("unusual") or report["limit"]}


def _tick(reports: list[Report]) -> int:
    return int(reports[0]["tick"]) if reports else 0


class _IdleTime:
    """How long a thread made no progress. Only the watchdog's running time counts: a suspended job does not hang."""

    def __init__(self, activity: ThreadActivity, is_alone: bool) -> None:
        self._activity, self._progress = activity, -1
        self._cpu = CpuUse(activity) if is_alone else None
        self.seconds = 0.0

    def update(self, passed: float) -> float:
        """Seconds without progress."""
        is_idle = self._activity.progress == self._progress
        self._progress = self._activity.progress
        self.seconds = self.seconds + passed if is_idle else 0.0
        if self._cpu:
            self._cpu.update(passed)
            if not is_idle:
                self._cpu.forget()
        return self.seconds

    def is_slow(self, limit: float) -> bool:
        """Whether the thread of a lone process still computes, within what is allowed to it."""
        return self._cpu is not None and self._cpu.asleep <= limit and self._cpu.computed <= COMPUTING_LIMITS * limit


class Watchdog:
    """Watches this rank while it is entered."""

    def __init__(self, world: World, rundir: RunDir, config: WatchdogConfig) -> None:
        config.check()
        self._world, self._rundir, self._config, self._tracker = world, rundir, config, world.activity
        self._heartbeats = HeartbeatExchange(world.store, rundir, world.rank, world.size, TICK, FAILURE_KEY)
        self._detector = StallDetector(world, rundir, self._heartbeats)
        self._idle: dict[ThreadActivity, _IdleTime] = {}
        self._shortest_limit = min(map(config.seconds, ACTIVITIES))
        self._ticks, self._is_ending, self._failure_seen = 0, False, 0.0
        self._reported, self._slow_reported, self._patience = False, False, 1.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._dump_file = StackDumpFile(self._rundir.stack_dump(self._world.rank), alone=self._world.size == 1)
        self._dump_later(self._reports(0.0)[0])
        self._heartbeats.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(None if self._is_ending else 2 * TICK)  # a stall counts before any error of the main thread
        self._dump_file.close()
        self._heartbeats.close()
        with suppress(OSError):
            write_heartbeat(self._rundir.heartbeat(self._world.rank), self._reports(0.0)[0])

    def _run(self) -> None:
        try:
            self._check_until_stopped()
        except Exception:  # a run must not be lost to its watchdog
            logger.exception("the watchdog has failed; the run goes on without it")

    def _check_until_stopped(self) -> None:
        before = time.monotonic()
        while not self._stop.wait(TICK):
            now = time.monotonic()
            reports = self._reports(passed=min(now - before, 2 * TICK))
            before = now
            self._dump_later(reports[0])
            self._end_with_others(reports[0], now)
            self._check(reports, now)

    def _check(self, reports: list[Report], now: float) -> None:
        """End the run if it hangs; before, say so if it seems to."""
        late = [report for report in reports if report["seconds"] > report["limit"]]
        early = [report for report in reports if report["seconds"] > (report["unusual"] or report["limit"])]
        if not early or stack_dump.is_debugged(early[-1]["thread"]):
            self._detector.reset()
            self._patience *= 2 if self._reported else 1  # a run that became slower is not reported again and again
            self._reported = self._slow_reported = False
        elif late:  # the last: the main thread may wait for a side thread
            stall = self._detector.check(late[-1], now)
            if stall and late[-1]["slow"]:
                self._report_slow(stall, late[-1])
            elif stall:
                self._agree_and_end(stall)
        elif not self._reported and self._world.rank < RANKS_AT_ONCE:
            stall = self._detector.check(early[-1], now, early=True)
            self._reported = stall is not None
            if stall:
                self._report_early(stall, early[-1])

    def _report_early(self, stall: Stall, own: Report) -> None:
        """Say who waits for whom, on one rank; the run goes on."""
        if stall.to_json()["speaker"] != self._world.rank:
            return
        first = stall.culprit or own
        text = (
            f"no progress for {own['seconds']:.0f} s, which is unusual: {stall.sentence}; "
            f"the run goes on, and ends if this lasts for {self._config.seconds(first['activity']):.0f} s "
            f"({self._config.setting(first['activity'])})"
        )
        self._print(text)

    def _report_slow(self, stall: Stall, own: Report) -> None:
        """Say once that this lone process is past its limit, and still computes."""
        if self._slow_reported:
            return
        self._slow_reported = True
        self._print(
            f"no progress for {own['seconds']:.0f} s: {stall.sentence}; it still uses the CPU, so it may only be slow, "
            f"and the run goes on. It ends after {own['limit']:.0f} s without CPU use, or after "
            f"{COMPUTING_LIMITS * own['limit']:.0f} s of CPU time without progress; {own['setting']} sets both"
        )

    def _print(self, text: str) -> None:
        """Print a warning about a run that goes on."""
        logger.warning(text, extra=PRINTED)
        if self._world.is_main or not hand_over(f"samestep: {text}", os.environ):
            print_safely(f"samestep: {text}", sys.stderr)

    def _dump_later(self, main: Report) -> None:
        """Stacks that are written too early do no harm, unless that ends the process."""
        several = min(self._shortest_limit, STACKS_AFTER)
        self._dump_file.dump_later(2 * TICK + (main["limit"] if self._world.size == 1 else several))

    def _end_with_others(self, main: Report, now: float) -> None:
        """End if another rank found a stall, or if one failed a while ago and this one made no progress since."""
        if self._heartbeats.agreed_stall:
            self._end(self._heartbeats.agreed_stall)
        failure = self._heartbeats.failure
        if failure is None or failure["rank"] == self._world.rank:
            return
        self._failure_seen = self._failure_seen or now
        if min(main["seconds"], now - self._failure_seen) > PEER_FAILURE_TIMEOUT:
            end_after_failure(failure, self._heartbeats, self._rundir, self._dump_file)

    def _reports(self, passed: float) -> list[Report]:
        """What each thread does now, the main one first; threads that ended are forgotten."""
        self._ticks += 1
        alone = self._world.size == 1
        self._idle = {a: self._idle.get(a) or _IdleTime(a, alone) for a in list(self._tracker.threads)}
        reports = []
        for activity, idle in self._idle.items():
            seconds, limit = idle.update(passed), self._config.seconds(activity.activity)
            unusual = self._unusual_after(activity, seconds, limit)
            report = stack_dump.thread_report(self._tracker, activity, seconds, limit, unusual, self._world.rank)
            known = {"setting": self._config.setting(activity.activity), "slow": idle.is_slow(limit)}
            reports.append(report | known | {"tick": self._ticks})
        self._heartbeats.own = reports
        return reports

    def _unusual_after(self, activity: ThreadActivity, seconds: float, limit: float) -> float | None:
        """After how many seconds without progress this rank reads what the others do; None: only at the limit.

        It takes some seconds to find out which of them are alive; then, it is reported.
        """
        unusual = activity.unusual_gap()
        if unusual is None or unusual * self._patience >= limit or (seconds > 2 * TICK and stack_dump.is_compiling()):
            return None
        return unusual * self._patience - HEARTBEAT_TIMEOUT - 2 * TICK

    def _agree_and_end(self, stall: Stall) -> None:
        """Send the stall to all ranks, unless another one found one first; a store that hangs is not waited for."""
        self._heartbeats.proposed_stall = stall.to_json()
        end = time.monotonic() + HEARTBEAT_TIMEOUT
        while self._world.size > 1 and self._heartbeats.agreed_stall is None and time.monotonic() < end:
            time.sleep(0.05)
        self._end(self._heartbeats.agreed_stall or self._heartbeats.proposed_stall)

    def _end(self, stall: dict[str, Json]) -> None:
        self._is_ending = True
        end_stalled_run(stall, self._heartbeats, self._rundir, self._dump_file)
