"""The evidence about a run, and the diagnosis. Nothing here reads a disk or a clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from samestep.core.exit_report import ExitReport
from samestep.core.json_files import Json
from samestep.train.record.liveness import NO_LOCK, Heartbeat, Lock, is_alive

Record = Mapping[str, Json]
TIGHT = 0.1
"""Memory is short on a host where the free part of (free + held by ranks) is below this."""


JOB_ENDS = {
    "CANCELLED": "was cancelled, by a user or an administrator",
    "TIMEOUT": "reached its time limit",
    "DEADLINE": "reached its deadline",
    "PREEMPTED": "was preempted by another job",
    "NODE_FAIL": "lost a node",
    "BOOT_FAIL": "lost a node that did not boot",
}
"""How a scheduler ends a job, by the job's state."""


@dataclass(frozen=True)
class SchedulerJob:
    """The last job of the run that has begun, as its scheduler knows it."""

    number: str
    scheduler: str
    state: str = ""
    """SLURM's name for it, also for a job of PBS, which may be STOPPED too, or ENDED if no more is known."""
    source: str = ""
    """The command or file that the state comes from."""
    script: str = ""
    output: str = ""
    log: str = ""
    """PBS: the file with its own messages about the job, if there is one."""
    comment: str = ""
    """PBS: why the job waits, or how it went."""

    @property
    def is_queued(self) -> bool:
        """Whether it waits in the queue, for the first time or again."""
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "CONFIGURING")


@dataclass(frozen=True)
class Evidence:
    """All that a verdict may rest on."""

    run: Path
    now: float
    here: str
    """The host on which the evidence was collected."""
    status: Record = field(default_factory=dict)
    launch: Record | None = None
    """The event of the last launch."""
    ended: Record | None = None
    """What our launcher recorded about the end of the last attempt, if that is later."""
    save_failed: str = ""
    """Why the last save failed, if none succeeded after it."""
    extended: Record | None = None
    """The event of the last launch that changed the length of the run."""
    exit_reports: Sequence[ExitReport] = ()
    from_logs: bool = False
    """Whether the exit reports were read from the logs, since ranks left no files of their own."""
    stall: Record | None = None
    heartbeats: Sequence[Heartbeat] = ()
    lock: Lock = NO_LOCK
    job: SchedulerJob | None = None
    kernel_message: str = ""
    """The kernel's message that it killed a rank for lack of memory."""
    checkpoint: tuple[str, int] | None = None
    """Stage and step of the newest one."""
    step: int | None = None
    """The last step that is known to be done."""
    last_change: tuple[str, float] | None = None
    """The file of the run that changed last, and when, in seconds since 1970."""
    disk_free: int = 1 << 62
    batch_size: int = 0
    files: frozenset[str] = frozenset()
    """Files of `logs/` and `watch/` that are not empty, relative to the run."""
    unreadable_checkpoints: str = ""
    """Why the folders of checkpoints could not be read; empty if they could."""
    damage: Mapping[str, str] = field(default_factory=dict)
    """Why files of the run, or parts of them, cannot be used."""

    @property
    def world(self) -> int:
        """How many ranks the last launch had, as far as is known."""
        return (self.launch or {}).get("world", 0) or len(self.heartbeats)

    @property
    def silent(self) -> list[int]:
        """Ranks that left no exit report."""
        reported = {report.rank for report in self.exit_reports}
        return [rank for rank in range(self.world) if rank not in reported]

    def source(self, rank: int) -> str:
        """The file that has the exit report of a rank."""
        return f"logs/rank_{rank}.log" if self.from_logs else f"watch/rank_{rank}_exit.json"

    def heartbeat(self, rank: int | None) -> Heartbeat | None:
        return next((heartbeat for heartbeat in self.heartbeats if heartbeat.rank == rank), None)

    @property
    def is_alive(self) -> bool:
        """Whether ranks still run."""
        return is_alive(self.lock, self.heartbeats, self.here, self.job.state if self.job else "")

    def is_tight(self, host: str) -> bool:
        """Whether memory was short on a host at the last heartbeats of its ranks."""
        there = [heartbeat for heartbeat in self.heartbeats if heartbeat.host == host and heartbeat.memory]
        free = min((heartbeat.free for heartbeat in there), default=0)
        return bool(there) and free < TIGHT * (free + sum(heartbeat.memory for heartbeat in there))


VERDICTS = {
    "running": "it is still running",
    "finished": "all its stages are done",
    "waiting": "the last stage that it was asked to do is done",
    "preempted": "it was asked to stop, and stopped cleanly",
    "crashed": "a rank failed with an unexpected error",
    "hung": "it made no progress for longer than the limit",
    "out_of_memory": "a rank needed more memory than there was",
    "killed": "ended from outside, without an exit report: by a user, a scheduler, or with its machine",
    "diverged": "metrics were not finite, or ranks held different parameters",
    "disk": "its state could not be written",
    "user_error": "a mistake that the user can fix",
    "failed": "it could not continue, and its message says why",
    "not_started": "none of its ranks has started",
}
"""All verdicts, and what they mean."""


@dataclass(frozen=True)
class Diagnosis:
    """What happened to a run."""

    verdict: str
    sentence: str
    next: Sequence[str] = ()
    """Commands to type."""
    ranks: Sequence[int] = ()
    """The ranks it started with, as far as is known."""
    host: str = ""
    reason: str = ""
    """The signal, the scheduler's state, the limit, or the source line."""
    traceback: str = ""
    source: str = ""
    """The file or command that it is known from."""

    def __post_init__(self) -> None:
        assert self.verdict in VERDICTS, self.verdict


def describe_ranks(evidence: Evidence, ranks: Sequence[int], host: str = "") -> str:
    """`rank 1 on node2`, `ranks 0, 2 and 3`, `every rank`."""
    if not ranks or len(ranks) == evidence.world > 1:
        return "every rank"
    if len(ranks) == 1:
        return f"rank {ranks[0]} on {host}" if host else f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def at_step(evidence: Evidence) -> str:
    """` at step 7 of 100 of stage fit`, as far as is known; with a space before it."""
    status = evidence.status
    if "stage" not in status:
        return " before its first step"
    step = evidence.step if evidence.step is not None else status.get("step")
    return f" at step {step} of {status.get('steps', '?')} of stage {status['stage']}"
