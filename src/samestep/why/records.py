"""What is known of a run, and the verdict on it. Nothing here reads a disk or a clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from samestep.core.exit_report import ExitReport
from samestep.core.records import Json

Record = Mapping[str, Json]
FRESH = 90.0
"""Seconds after which a rank whose beat stands still is not taken for alive: it beats every few."""
TIGHT = 0.1
"""Memory is short where less than this part of what ranks hold and might still get is free."""


JOB_ENDS = {
    "CANCELLED": "was cancelled, by a user or an administrator",
    "TIMEOUT": "came to its time limit",
    "DEADLINE": "came to its deadline",
    "PREEMPTED": "had to make way for another job",
    "NODE_FAIL": "lost a node",
    "BOOT_FAIL": "lost a node that did not boot",
}
"""How a scheduler ends a job, by the job's state."""


@dataclass(frozen=True)
class Lock:
    """Who had the run, and whether it still has."""

    held: bool | None = None
    """None: this machine cannot tell."""
    host: str = ""
    pid: int = 0


@dataclass(frozen=True)
class Heartbeat:
    """The last sign of life of a rank."""

    rank: int
    host: str
    pid: int
    age: float
    """Seconds since, by whichever clock says less."""
    stage: str = ""
    step: int | None = None
    activity: str = ""
    seconds: float = 0.0
    """So long it has been at it."""
    limit: float = 0.0
    memory: int = 0
    free: int = 0


@dataclass(frozen=True)
class SchedulerJob:
    """The last job of the run that has begun, as its scheduler knows it."""

    number: str
    scheduler: str
    state: str = ""
    """In SLURM's words; empty: nobody could be asked."""
    source: str = ""
    """Where the state was learnt."""
    script: str = ""
    output: str = ""

    @property
    def waits(self) -> bool:
        """In the queue, for the first time or once more."""
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "CONFIGURING")


@dataclass(frozen=True)
class Evidence:
    """All that a verdict may rest on."""

    run: Path
    now: float
    here: str
    """The host on which somebody asks."""
    status: Record = field(default_factory=dict)
    launch: Record | None = None
    """The event of the last launch."""
    ended: Record | None = None
    """What our launcher noted of the end of the last attempt, if that is later."""
    save_failed: str = ""
    """Why the last save failed, if none succeeded after it."""
    words: Sequence[ExitReport] = ()
    logged: bool = False
    """The words are those of the logs, since ranks left no others."""
    stall: Record | None = None
    beats: Sequence[Heartbeat] = ()
    lock: Lock = Lock()
    job: SchedulerJob | None = None
    kernel: str = ""
    """What the kernel says of a rank that it killed for lack of memory."""
    checkpoint: tuple[str, int] | None = None
    """Stage and step of the newest."""
    step: int | None = None
    """The last that is known to be done."""
    last_change: tuple[str, float] | None = None
    """The file of the run that changed last, and when, in seconds since 1970."""
    disk_free: int = 1 << 62
    batch_size: int = 0
    files: frozenset[str] = frozenset()
    """Those of the logs and of the watch that hold something, relative to the run."""

    @property
    def world(self) -> int:
        """How many ranks the last launch had, as far as is known."""
        return int((self.launch or {}).get("world", 0)) or len(self.beats)

    @property
    def silent(self) -> list[int]:
        """Ranks that left no word."""
        spoke = {word.rank for word in self.words}
        return [rank for rank in range(self.world) if rank not in spoke]

    def source(self, rank: int) -> str:
        """The file that has the word of a rank."""
        return f"logs/rank_{rank}.log" if self.logged else f"watch/rank_{rank}_word.json"

    def beat(self, rank: int | None) -> Heartbeat | None:
        """The last sign of life of one rank."""
        return next((beat for beat in self.beats if beat.rank == rank), None)

    @property
    def lives(self) -> bool:
        """Whether ranks are still at it. The lock is sure where it can be asked; elsewhere go by signs of life."""
        if self.lock.held is not None and (self.lock.held or self.lock.host == self.here):
            return self.lock.held
        if self.job is not None and self.job.state == "RUNNING":
            return True
        return any(beat.age < FRESH for beat in self.beats)

    def is_tight(self, host: str) -> bool:
        """Whether memory was short on a host when its ranks were last heard of."""
        there = [beat for beat in self.beats if beat.host == host and beat.memory]
        free = min((beat.free for beat in there), default=0)
        return bool(there) and free < TIGHT * (free + sum(beat.memory for beat in there))


def as_word(data: Json) -> ExitReport | None:
    """A last word as it was written, maybe by another version."""
    known = {field.name for field in fields(ExitReport)}
    try:
        return ExitReport(**{name: value for name, value in data.items() if name in known})
    except (AttributeError, TypeError):
        return None


VERDICTS = {
    "running": "it is still at work",
    "finished": "all its stages are done",
    "waiting": "the stage that it should do is done",
    "preempted": "it was asked to stop, and did, in good order",
    "crashed": "a rank failed in a way that nobody foresaw",
    "hung": "nothing moved for longer than the limit",
    "out_of_memory": "a rank needed more memory than there was",
    "killed": "ended from outside, without a word: by a user, a scheduler, or with its machine",
    "diverged": "figures were not finite any more, or ranks held different parameters",
    "disk": "its state could not be written",
    "user_error": "a mistake that the user can mend",
    "failed": "it could not go on, and says why",
    "not_started": "no rank of it has begun",
}
"""All verdicts there are."""


@dataclass(frozen=True)
class Diagnosis:
    """What became of a run."""

    verdict: str
    sentence: str
    next: Sequence[str] = ()
    """What to type."""
    ranks: Sequence[int] = ()
    """Those it began with, as far as is known."""
    host: str = ""
    reason: str = ""
    """The signal, the scheduler's word, the limit, or the place in the source."""
    traceback: str = ""
    source: str = ""
    """The file that says so."""

    def __post_init__(self) -> None:
        """Nobody invents a word."""
        assert self.verdict in VERDICTS, self.verdict


def named(evidence: Evidence, ranks: Sequence[int], host: str = "") -> str:
    """`rank 1 on node2`, `ranks 0, 2 and 3`, `every rank`."""
    if not ranks or len(ranks) == evidence.world > 1:
        return "every rank"
    if len(ranks) == 1:
        return f"rank {ranks[0]} on {host}" if host else f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def place(evidence: Evidence) -> str:
    """` at step 7 of 100 of stage fit`, as far as is known; with a space before it."""
    status = evidence.status
    if "stage" not in status:
        return " before its first step"
    step = evidence.step if evidence.step is not None else status.get("step")
    return f" at step {step} of {status.get('steps', '?')} of stage {status['stage']}"
