"""From evidence to a verdict: what happened to the run, and which commands to type next."""

import shlex

from samestep.core.errors import EXIT_PREEMPTED
from samestep.core.status import is_done
from samestep.train.record.liveness import FRESH
from samestep.why.causes import LOST_NODE, SECOND_CTRL_C, Cause, first_failure
from samestep.why.records import JOB_ENDS, Diagnosis, Evidence, at_step, describe_ranks

_FULL_BELOW = 1 << 20
"""Bytes: a disk with less free space cannot take a rank's exit report."""
_FULL_TEXTS = ("No space left on device", "Disk quota exceeded")
RESTARTING = 300.0
"""Seconds within which a launcher that announced a restart must have started it."""
_ENDED = {"FAILED": "has failed", "STOPPED": "has stopped", "COMPLETED": "has ended", "ENDED": "has ended"}
"""How a job ended that its scheduler did not end, by its state."""
_REASONS = {
    "SIGINT": "Ctrl-C (SIGINT)",
    "SIGTERM": "SIGTERM (from a user, a launcher or a scheduler)",
    "SIGHUP": "SIGHUP (its terminal or connection was closed)",
    "SIGUSR1": "SIGUSR1 (a scheduler's notice before a time limit or a preemption)",
    "max_time": "its own time limit (max_time)",
}


def diagnose(evidence: Evidence) -> Diagnosis:
    """The verdict. What the last launch reported about its own end comes before what can only be inferred."""
    status, ended = evidence.status.get("status"), evidence.ended or {}
    if is_done(evidence.status):
        following = [f"samestep checkpoints {evidence.run}"]
        early = evidence.status.get("stopped_early")
        text = f"the run is done: {early or 'all its stages are finished'}"
        return Diagnosis("finished", text, following, source="status.json")
    if status == "waiting":
        return _waiting(evidence)
    if status == "preempted":
        return _preempted(evidence, str(evidence.status.get("reason", "")), "status.json")
    if ended.get("restart") and evidence.now - float(ended.get("time", 0.0)) < RESTARTING:
        text = f"the launcher starts the run again after: {ended.get('text', '')}"
        return Diagnosis("running", text, [_follow_log(evidence)], source="events.jsonl")
    if ended.get("code") == EXIT_PREEMPTED:
        return _preempted(evidence, str(ended.get("signal", "")), "events.jsonl")
    cause = first_failure(evidence)
    if cause is not None and cause.verdict != "killed":
        return _failure(evidence, cause)
    if cause is None and evidence.is_alive:
        return _running(evidence)
    if evidence.launch is None and not status:
        return _not_started(evidence)
    return _diagnose_without_report(evidence, cause)


def _running(evidence: Evidence) -> Diagnosis:
    slow = max(evidence.heartbeats, key=lambda beat: beat.seconds / beat.limit if beat.limit else 0.0, default=None)
    text = f"the run is in progress{at_step(evidence)}"
    if slow is not None and slow.limit and slow.seconds > slow.limit / 4:
        text += f"; rank {slow.rank} on {slow.host} has made no progress for {slow.seconds:.0f} s ({slow.activity})"
        text += f", and is ended after {slow.limit:.0f} s"
    silent = [beat.rank for beat in evidence.heartbeats if beat.age >= FRESH]
    if silent:
        text += f"; no heartbeat from {describe_ranks(evidence, silent)} for {evidence.heartbeats[0].age:.0f} s"
    return Diagnosis("running", text, [*_watch_job(evidence), _follow_log(evidence)], source="lock")


def _waiting(evidence: Evidence) -> Diagnosis:
    stage = evidence.status.get("after")
    text = f"stage {stage} is done, and the run waits to be resumed, since it was started with until={stage}"
    return Diagnosis("waiting", text, [_resume(evidence, "until=null")], source="status.json")


def _preempted(evidence: Evidence, reason: str, source: str) -> Diagnosis:
    """Stopped by a request, with a save or before there was anything to save."""
    reported = str((evidence.ended or {}).get("text") or "")
    saved = ", with a save," if source == "status.json" and evidence.status.get("saved", True) else ""
    text = f"stopped{at_step(evidence)}{saved} by {_REASONS.get(reason, reason or 'a request')}"
    text += f"; {reported}" if reported else ""
    job = evidence.job
    if job is not None and job.is_queued:
        text += f"; job {job.number} is in the queue and continues from there by itself"
        return Diagnosis("preempted", text, _watch_job(evidence), reason=reason, source=source)
    text += f"; job {job.number} {JOB_ENDS[job.state]}" if job is not None and job.state in JOB_ENDS else ""
    return Diagnosis("preempted", text, [_resume(evidence)], reason=reason, source=source)


def _not_started(evidence: Evidence) -> Diagnosis:
    job = evidence.job
    if job is None:
        return Diagnosis("not_started", "no rank has begun to train", [_resume(evidence)], source="config.json")
    how = {"": "was submitted", "PENDING": "waits in the queue", "RUNNING": "has begun"}.get(job.state)
    waits = f" ({job.comment})" if job.state == "PENDING" and job.comment else ""
    ended = (JOB_ENDS | _ENDED).get(job.state)
    text = f"job {job.number} {how or ended or f'is {job.state}'}{waits}, and no rank has begun to train"
    files = [f"less {file}" for file in (job.output, job.log) if file]
    following = [*_watch_job(evidence), f"less {job.output}"] if how else files
    return Diagnosis("not_started", text, following, reason=job.state, source=job.source or "job/job.json")


def _failure(evidence: Evidence, cause: Cause) -> Diagnosis:
    run, again = evidence.run, _resume(evidence)
    logs = [f"logs/rank_{rank}{end}" for rank in cause.ranks[:1] for end in (".log", "_output.txt")]
    stacks = [f"watch/rank_{rank}_stacks.txt" for rank in [*cause.ranks, *range(evidence.world)]]
    following = {
        "crashed": [*_view_file(evidence, *logs), again],
        "hung": [*_view_file(evidence, *stacks, *logs), again],
        "out_of_memory": [_resume_with_less_memory(evidence, cause.retry_batch_size)],
        "diverged": _diverged(evidence, cause),
        "disk": [f"df -h {run} /dev/shm", _verify(evidence), again],
        "user_error": [_resume_with_changes(evidence)],
        "failed": [*_view_file(evidence, *logs), again],
    }[cause.verdict]
    known = (cause.ranks, cause.host, cause.reason, cause.traceback, cause.source)
    return Diagnosis(cause.verdict, _sentence(evidence, cause), following, *known)


def _diverged(evidence: Evidence, cause: Cause) -> list[str]:
    """Commands to look at the metrics, or at machines whose arithmetic differs."""
    if "not finite" in cause.text:
        return [f"tail -n 20 {evidence.run / 'metrics.jsonl'}", _verify(evidence)]
    return ["samestep doctor --test all", _verify(evidence), _resume(evidence)]


def _sentence(evidence: Evidence, cause: Cause) -> str:
    first_line = (cause.text.splitlines() or [""])[0] if cause.traceback else cause.text
    if cause.verdict in ("user_error", "hung", "diverged"):
        return first_line or "the run made no progress"
    who = describe_ranks(evidence, cause.ranks, cause.host) if cause.ranks else "a rank"
    half = "; with half the batch_size the run stays the same" if cause.retry_batch_size else ""
    if cause.reason:  # there is no exit report, only the launcher's text
        return f"{who} {first_line}{at_step(evidence)}"
    return f"{who} failed{at_step(evidence)}: {first_line}{half}"


def _follow_log(evidence: Evidence) -> str:
    return f"tail -F {evidence.run / 'logs' / 'rank_0.log'}"


def _diagnose_without_report(evidence: Evidence, cause: Cause | None) -> Diagnosis:
    """What ended a run that left no exit report about it. `cause`: what the launcher or other ranks noticed."""
    cause = cause or Cause("killed", "", evidence.silent)
    again = [_resume(evidence)]
    if cause.reason == SECOND_CTRL_C:
        text = f"ended at once by a second Ctrl-C{at_step(evidence)}, without a save"
        return Diagnosis("killed", text, again, reason=SECOND_CTRL_C, source=cause.source)
    if cause.reason == LOST_NODE:
        return Diagnosis("killed", cause.text, again, reason=LOST_NODE, source=cause.source)
    return (
        _ended_by_scheduler(evidence)
        or _ended_by_memory(evidence, cause)
        or _ended_by_disk(evidence, cause)
        or _killed(evidence, cause)
    )


def _ended_by_scheduler(evidence: Evidence) -> Diagnosis | None:
    job = evidence.job
    if job is None or job.state not in (*JOB_ENDS, "OUT_OF_MEMORY"):
        return None
    reason = f"{job.scheduler} {job.state}"
    if job.state == "OUT_OF_MEMORY":
        text = (
            f"job {job.number} used more memory than it had requested{at_step(evidence)}; request more with --mem, or "
        )
        text += _reduce_memory(evidence)
        return Diagnosis("out_of_memory", text, [_resume_with_less_memory(evidence)], reason=reason, source=job.source)
    text = f"job {job.number} {JOB_ENDS[job.state]}{at_step(evidence)}, and the run could not save before it"
    return Diagnosis("killed", text, [_resume(evidence)], reason=reason, source=job.source)


def _ended_by_memory(evidence: Evidence, cause: Cause) -> Diagnosis | None:
    """The kernel ends a process that takes the last memory with SIGKILL, which cannot be caught."""
    if cause.reason not in ("", "SIGKILL"):
        return None
    killed = [beat for beat in evidence.heartbeats if f"Killed process {beat.pid} " in evidence.kernel_message]
    tight = [beat for beat in evidence.heartbeats if beat.rank in cause.ranks and evidence.is_tight(beat.host)]
    if not killed and not tight:
        return None
    beat = (killed or tight)[0]
    surely = "was killed by the kernel" if killed else "was probably killed by the kernel"
    text = f"rank {beat.rank} on {beat.host} {surely} for lack of memory{at_step(evidence)}: it held "
    text += f"{gigabytes(beat.memory)}, and {gigabytes(beat.free)} were free there; {_reduce_memory(evidence)}"
    source = "dmesg" if killed else f"watch/rank_{beat.rank}.json"
    return Diagnosis(
        "out_of_memory",
        text,
        [_resume_with_less_memory(evidence)],
        [beat.rank],
        beat.host,
        "SIGKILL",
        source=source,
    )


def _reduce_memory(evidence: Evidence) -> str:
    rows = f"batch_size (it is {evidence.batch_size})" if evidence.batch_size else "batch_size"
    return f"reduce {rows} or num_workers, or set checkpoint.background=false"


def _ended_by_disk(evidence: Evidence, cause: Cause) -> Diagnosis | None:
    if cause.reason:
        return None
    failed = any(text in evidence.save_failed for text in _FULL_TEXTS)
    if not failed and evidence.disk_free >= _FULL_BELOW:
        return None
    text = f"the disk is full{at_step(evidence)}, and no rank could write an exit report"
    text = f"{text}; the last save failed: {evidence.save_failed}" if evidence.save_failed else text
    following = [f"df -h {evidence.run}", _verify(evidence), _resume(evidence)]
    return Diagnosis("disk", text, following, source="events.jsonl" if failed else "df")


def _killed(evidence: Evidence, cause: Cause) -> Diagnosis:
    who = describe_ranks(evidence, cause.ranks, cause.host)
    if cause.reason:
        text = f"{who} was killed by {cause.reason}{at_step(evidence)}, by a user, a scheduler or the system"
    else:
        text = f"{who} ended without an exit report{at_step(evidence)}: killed by a user, a scheduler or the system, "
        text += "or its machine went down"
    names = [f"logs/rank_{rank}{end}" for rank in cause.ranks[:1] for end in ("_output.txt", ".log")]
    following = [*_view_file(evidence, *names), _resume(evidence)]
    return Diagnosis("killed", text, following, cause.ranks, cause.host, cause.reason, cause.traceback, cause.source)


def gigabytes(size: float) -> str:
    """`3.1 GB`."""
    return f"{size / 1e9:.3g} GB"


def _resume(evidence: Evidence, *more: str) -> str:
    """Continue the run where it ran, with the same number of ranks if all were on one machine."""
    job, run = evidence.job, str(evidence.run)
    if job is not None and job.script and not more:
        return shlex.join(["sbatch" if job.scheduler == "slurm" else "qsub", job.script])
    if job is not None:
        return _resume_with_changes(evidence, *more)
    hosts = {beat.host for beat in evidence.heartbeats} | {report.host for report in evidence.exit_reports}
    ranks = ["--nproc", str(evidence.world)] if evidence.world > 1 and len(hosts - {""}) == 1 else []
    return shlex.join(["samestep", "train", "--resume", run, *ranks, *more])


def _resume_with_changes(evidence: Evidence, *more: str) -> str:
    """Continue the run with other settings, which the user adds."""
    run, job = str(evidence.run), evidence.job
    args = ["train", "--resume", run] if job is None else ["submit", "--resume", run, "--on", job.scheduler]
    return shlex.join(["samestep", *args, *more])


def _resume_with_less_memory(evidence: Evidence, batch_size: int | None = None) -> str:
    """Continue with less memory: the rows that the rank named, else half as many, or fewer loader workers."""
    rows = batch_size or evidence.batch_size // 2
    args = [f"--batch_size={rows}"] if rows else ["num_workers=0", "checkpoint.background=false"]
    return _resume(evidence, *args)


def _verify(evidence: Evidence) -> str:
    return shlex.join(["samestep", "checkpoints", str(evidence.run), "--verify"])


def _view_file(evidence: Evidence, *names: str) -> list[str]:
    """Open the first of these files of the run that exists."""
    found = next((name for name in names if name in evidence.files), None)
    return [shlex.join(["less", str(evidence.run / found)])] if found else []


def _watch_job(evidence: Evidence) -> list[str]:
    job = evidence.job
    if job is None:
        return []
    return [shlex.join(["squeue", "--job", job.number] if job.scheduler == "slurm" else ["qstat", job.number])]
