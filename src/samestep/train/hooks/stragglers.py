"""How fast each rank is, and which one the others wait for.

With every row of figures come three times of each rank, in seconds a step: the whole step, its part in getting data,
and its part in waiting for the others' gradients. Ranks in step take equally long, so a slow one shows in what is its
own, the step without the waiting. Under fsdp, and in a stage without a learner, waits are not measured and nobody is
judged.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median_low

from samestep.core.records import JsonLines
from samestep.train.bench import Bench
from samestep.train.loop import Progress

RATIO, LEAST = 1.3, 0.002
"""A slow rank works so many times as long as the median, and so many seconds more."""
ROWS, SPAN = 3, 1.0
"""It is named after so many rows in which it was slow; shorter rows than so many seconds count together as one."""
ADVICE = {
    "data": "raise num_workers, or look at the disk of that host",
    "compute": "look at what else runs on that host; samestep doctor --test all compares the ranks",
}


@dataclass(frozen=True)
class Slow:
    """A rank that the others wait for."""

    rank: int
    work: float
    """Seconds of its own a step."""
    median: float
    """The same of the ranks' median."""
    where: str
    """`data` where most of what it takes longer goes into getting data, else `compute`."""


class StragglerDetector:
    """Looks at row after row of all ranks' times and names whoever is slow in several in a row, once.

    It is named again only if it was not slow for as many rows in between. Of two ranks the faster is the median.
    """

    def __init__(self, ranks: int) -> None:
        self._recent: list[deque[bool]] = [deque(maxlen=ROWS) for _ in range(ranks)]
        self._named: set[int] = set()

    def look(self, work: Sequence[float], data: Sequence[float]) -> list[Slow]:
        """Take in the ranks' own work and, of it, the getting of data; who is to be named now."""
        typical, typical_data = median_low(work), median_low(data)
        found = []
        for rank, (own, own_data, recent) in enumerate(zip(work, data, self._recent)):
            more = own - typical
            recent.append(own > RATIO * typical and more >= LEAST)
            if not any(recent):
                self._named.discard(rank)
            if sum(recent) == ROWS and rank not in self._named:
                self._named.add(rank)
                where = "data" if own_data - typical_data >= more / 2 else "compute"
                found.append(Slow(rank, own, typical, where))
        return found


class Speeds:
    """The times of all ranks, row by row; rank 0 records them and names who is slow. None of it is state."""

    def __init__(self, bench: Bench, progress: Progress, tell: Callable[..., None]) -> None:
        """`tell` is given what happens, as an event: its kind and its details."""
        self._bench, self._progress, self._tell = bench, progress, tell
        self._hosts = bench.world.gather(bench.world.host)
        self._record = JsonLines(bench.rundir.rank_speeds)
        self._judge = StragglerDetector(bench.world.size)
        self._together: list[tuple[int, Sequence[Sequence[float]]]] = []
        self._since, self._before = time.monotonic(), self._totals()

    def own_times(self) -> list[float]:
        """Of this rank since the last row, in seconds a step: all, data, waiting."""
        now, totals = time.monotonic(), self._totals()
        spent = now - self._since - self._progress.aside
        steps, data, waited = (new - old for new, old in zip(totals, self._before))
        self._since, self._before = now, totals
        return [seconds / max(steps, 1) for seconds in (spent, data, waited)]

    def take(self, times: Sequence[Sequence[float]], step: int, steps: int) -> None:
        """The times of all ranks for the row of so many steps that ended with `step`."""
        if not self._bench.world.is_main:
            return
        self._write(times, step)
        if self._measured:
            self._together.append((steps, times))
            self._look()

    def _totals(self) -> tuple[int, float, float]:
        data = sum(feed.seconds for feed in self._bench.feeds)
        return self._progress.step, data, sum(learner.waited or 0.0 for learner in self._bench.learners)

    @property
    def _measured(self) -> bool:
        """Whether it is known how long ranks wait."""
        waits = [learner.waited for learner in self._bench.learners]
        return bool(waits) and None not in waits

    def _write(self, times: Sequence[Sequence[float]], step: int) -> None:
        spent, data, waited = ([round(seconds, 6) for seconds in column] for column in zip(*times))
        row = {"time": time.time(), "stage": self._bench.stage, "step": step}
        shown = waited if self._measured else None
        self._record.append({**row, "step_seconds": spent, "data_seconds": data, "wait_seconds": shown})

    def _look(self) -> None:
        """Judge what came since the last look, if that is long enough not to be chance."""
        if sum(steps * times[0][0] for steps, times in self._together) < SPAN:
            return
        total = sum(steps for steps, _ in self._together)
        work, data = [], []
        for rank in range(self._bench.world.size):
            rows = [(steps, times[rank]) for steps, times in self._together]
            work.append(sum(steps * (step - waited) for steps, (step, _, waited) in rows) / total)
            data.append(sum(steps * data for steps, (_, data, _) in rows) / total)
        self._together = []
        for slow in self._judge.look(work, data):
            self._name(slow)

    def _name(self, slow: Slow) -> None:
        host = self._hosts[slow.rank]
        self._tell("slow_rank", host=host, **asdict(slow), stage=self._bench.stage, step=self._progress.step)
        part = "most of the difference in getting data" if slow.where == "data" else "the difference not in its data"
        self._bench.screen.say(
            f"warning: the others wait for rank {slow.rank} on {host}, which works {1000 * slow.work:.1f} ms a step "
            f"where the median is {1000 * slow.median:.1f} ms, {part}; {ADVICE[slow.where]}"
        )
