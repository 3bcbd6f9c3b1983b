"""One rank is late: it looks at all others, through the store or else through the run directory, and judges."""

from contextlib import suppress

from samestep.core.rundir import RunDir
from samestep.world.watch import sight
from samestep.world.watch.culprit import Report, Stall, judge
from samestep.world.watch.post import OUTDATED, Post, filed_reports
from samestep.world.world import World

UNHEARD = 5.0
"""Seconds without a sign of life after which a rank counts as silent, and the store as gone."""

AT_ONCE, TURN, LAST_TURN = 8, 1.0, 12.0
"""So many ranks look at all others at once, and so many seconds later the next ones: a thousand who ask for a thousand
answers at the same time would get none."""


class Suspicion:
    """What a rank makes of its own lateness, look by look."""

    def __init__(self, world: World, rundir: RunDir, post: Post) -> None:
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
        state = sight.state_of(report["pid"]) if report["host"] == self._world.host else ""
        if state:
            return {**report, "alive": False, "state": state}
        if report["alive"]:
            return report
        with suppress(OSError):
            stacks, beat = self._rundir.stacks(report["rank"]), self._rundir.beat(report["rank"])
            places = sight.dumped_places(stacks.read_text(), report["thread"])
            if places and stacks.stat().st_mtime > beat.stat().st_mtime:  # written after its last sign of life
                return {**report, "state": "held", "where": sight.relevant(places)}
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
