"""How fast each rank is, and which one the others wait for.

With every row of metrics come three times of each rank, in seconds per step: the whole step, its part in getting data,
and its part in waiting for the others' gradients; and the memory that it holds. Steps take equally long on all ranks,
so a slow rank shows in its own work: the step without the waiting. Under fsdp, and in a stage without a learner, waits
are not measured and no rank is named.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median_low

import torch

from samestep.core.json_files import JsonLines
from samestep.train.api.bench import Bench
from samestep.train.record.progress import Progress
from samestep.world.watchdog.stack_dump import process_memory

RATIO, MIN_SECONDS = 1.3, 0.002
"""A slow rank works this many times as long as the median, and at least this many seconds longer."""
ROWS, ROW_SECONDS = 3, 1.0
"""It is named after this many rows in which it was slow; rows shorter than so many seconds are joined into one."""
ADVICE = {
    "data": "raise num_workers, or look at the disk of that host",
    "compute": "look at what else runs on that host; samestep doctor --test all compares the ranks",
}


@dataclass(frozen=True)
class SlowRank:
    """A rank that the others wait for."""

    rank: int
    work: float
    """Seconds of its own work per step."""
    median: float
    """The median of all ranks."""
    where: str
    """`data` where most of the difference is in getting data, else `compute`."""


class StragglerDetector:
    """Takes row after row of all ranks' times and names a rank that is slow in several rows in a row, once.

    It is named again only if it was not slow for as many rows in between. Of two ranks the faster is the median.
    """

    def __init__(self, ranks: int) -> None:
        self._recent: list[deque[bool]] = [deque(maxlen=ROWS) for _ in range(ranks)]
        self._named: set[int] = set()

    def add_row(self, work: Sequence[float], data: Sequence[float]) -> list[SlowRank]:
        """Add each rank's own work and, of it, the time for data; returns the ranks to name now."""
        typical, typical_data = median_low(work), median_low(data)
        found = []
        for rank, (own, own_data, recent) in enumerate(zip(work, data, self._recent)):
            more = own - typical
            recent.append(own > RATIO * typical and more >= MIN_SECONDS)
            if not any(recent):
                self._named.discard(rank)
            if sum(recent) == ROWS and rank not in self._named:
                self._named.add(rank)
                where = "data" if own_data - typical_data >= more / 2 else "compute"
                found.append(SlowRank(rank, own, typical, where))
        return found


class RankSpeeds:
    """The times of all ranks, row by row; rank 0 writes them and names slow ranks. They are no checkpoint state."""

    def __init__(self, bench: Bench, progress: Progress, event: Callable[..., None]) -> None:
        """`event` records an event of the run: its kind and its details."""
        self._bench, self._progress, self._event = bench, progress, event
        self._hosts = bench.world.gather(bench.world.host)
        self._file = JsonLines(bench.rundir.rank_speeds)
        self._detector = StragglerDetector(bench.world.size)
        self._joined: list[tuple[int, Sequence[Sequence[float]]]] = []
        self._since, self._before = time.monotonic(), self._totals()

    def of_this_rank(self) -> list[float]:
        """The times of this rank since the last row, in seconds per step: all, data, waiting. And bytes of memory: of
        its GPU, or of its process."""
        now, totals = time.monotonic(), self._totals()
        spent = now - self._since - self._progress.paused_seconds
        steps, data, waited = (new - old for new, old in zip(totals, self._before))
        self._since, self._before = now, totals
        is_gpu = self._bench.world.device.type == "cuda"
        held = torch.cuda.memory_reserved(self._bench.world.device) if is_gpu else process_memory()
        return [*(seconds / max(steps, 1) for seconds in (spent, data, waited)), float(held)]

    def add_row(self, times: Sequence[Sequence[float]], step: int, steps: int) -> None:
        """Take the times of all ranks for a row of `steps` steps that ended with `step`."""
        if not self._bench.world.is_main:
            return
        self._write(times, step)
        if self._measured:
            self._joined.append((steps, times))
            self._detect()

    def _totals(self) -> tuple[int, float, float]:
        data = sum(feed.seconds for feed in self._bench.feeds.made)
        return self._progress.step, data, sum(learner.waited or 0.0 for learner in self._bench.learners)

    @property
    def _measured(self) -> bool:
        """Whether the waiting of ranks is measured."""
        waits = [learner.waited for learner in self._bench.learners]
        return bool(waits) and None not in waits

    def _write(self, times: Sequence[Sequence[float]], step: int) -> None:
        *seconds, memory = zip(*times)
        spent, data, waited = ([round(each, 6) for each in column] for column in seconds)
        row = {"time": time.time(), "stage": self._bench.stage, "step": step}
        shown = waited if self._measured else None
        held = {"memory": [int(each) for each in memory]}
        self._file.append({**row, "step_seconds": spent, "data_seconds": data, "wait_seconds": shown, **held})

    def _detect(self) -> None:
        """Name slow ranks in the rows since the last time, if those are long enough not to be chance."""
        if sum(steps * times[0][0] for steps, times in self._joined) < ROW_SECONDS:
            return
        total = sum(steps for steps, _ in self._joined)
        work, data = [], []
        for rank in range(self._bench.world.size):
            rows = [(steps, times[rank]) for steps, times in self._joined]
            work.append(sum(steps * (step - waited) for steps, (step, _, waited, _) in rows) / total)
            data.append(sum(steps * data for steps, (_, data, _, _) in rows) / total)
        self._joined = []
        for slow in self._detector.add_row(work, data):
            self._report(slow)

    def _report(self, slow: SlowRank) -> None:
        host = self._hosts[slow.rank]
        self._event("slow_rank", host=host, **asdict(slow), stage=self._bench.stage, step=self._progress.step)
        part = "most of the difference in getting data" if slow.where == "data" else "the difference not in its data"
        self._bench.screen.print(
            f"warning: the others wait for rank {slow.rank} on {host}, which works {1000 * slow.work:.1f} ms a step "
            f"where the median is {1000 * slow.median:.1f} ms, {part}; {ADVICE[slow.where]}"
        )
