"""Ends that no rank could tell of: what signals, schedulers, memory and disks let one conclude."""

from samestep.doctor.why import commands
from samestep.doctor.why.causes import LOST_NODE, TWICE, Cause
from samestep.doctor.why.evidence import JOB_ENDS, Evidence
from samestep.doctor.why.finding import Finding, named, place

_FULL = 1 << 20
"""A disk with less room than this cannot take what a rank has to say."""
_FULL_TEXTS = ("No space left on device", "Disk quota exceeded")


def unspoken(evidence: Evidence, cause: Cause | None) -> Finding:
    """What ended a run that left no word of it. `cause`: what the launcher or other ranks noticed."""
    cause = cause or Cause("killed", "", evidence.silent)
    again = [commands.resume(evidence)]
    if cause.reason == TWICE:
        text = f"ended at once by a second Ctrl-C{place(evidence)}, without a save"
        return Finding("killed", text, again, reason=TWICE, source=cause.source)
    if cause.reason == LOST_NODE:
        return Finding("killed", cause.text, again, reason=LOST_NODE, source=cause.source)
    return (
        _by_scheduler(evidence)
        or _by_memory(evidence, cause)
        or _by_disk(evidence, cause)
        or _by_force(evidence, cause)
    )


def _by_scheduler(evidence: Evidence) -> Finding | None:
    job = evidence.job
    if job is None or job.state not in (*JOB_ENDS, "OUT_OF_MEMORY"):
        return None
    reason = f"{job.scheduler} {job.state}"
    if job.state == "OUT_OF_MEMORY":
        text = f"job {job.number} took more memory than it had asked for{place(evidence)}; ask for more with --mem, or "
        text += _less(evidence)
        return Finding("out_of_memory", text, [commands.smaller(evidence)], reason=reason, source=job.source)
    text = f"job {job.number} {JOB_ENDS[job.state]}{place(evidence)}, and the run could not save before it"
    return Finding("killed", text, [commands.resume(evidence)], reason=reason, source=job.source)


def _by_memory(evidence: Evidence, cause: Cause) -> Finding | None:
    """The kernel ends a process that takes the last memory with SIGKILL, which nobody can catch."""
    if cause.reason not in ("", "SIGKILL"):
        return None
    killed = [beat for beat in evidence.beats if f"Killed process {beat.pid} " in evidence.kernel]
    tight = [beat for beat in evidence.beats if beat.rank in cause.ranks and evidence.is_tight(beat.host)]
    if not killed and not tight:
        return None
    beat = (killed or tight)[0]
    surely = "was killed by the kernel" if killed else "was probably killed by the kernel"
    text = f"rank {beat.rank} on {beat.host} {surely} for lack of memory{place(evidence)}: it held "
    text += f"{gigabytes(beat.memory)}, and {gigabytes(beat.free)} were free there; {_less(evidence)}"
    source = "dmesg" if killed else f"watch/rank_{beat.rank}.json"
    return Finding(
        "out_of_memory", text, [commands.smaller(evidence)], [beat.rank], beat.host, "SIGKILL", source=source
    )


def _less(evidence: Evidence) -> str:
    rows = f"batch_size (it is {evidence.batch_size})" if evidence.batch_size else "batch_size"
    return f"reduce {rows} or num_workers, or set checkpoint.background=false"


def _by_disk(evidence: Evidence, cause: Cause) -> Finding | None:
    if cause.reason:
        return None
    failed = any(text in evidence.save_failed for text in _FULL_TEXTS)
    if not failed and evidence.disk_free >= _FULL:
        return None
    text = f"the disk is full{place(evidence)}, and no rank could leave a word"
    text = f"{text}; the last save failed: {evidence.save_failed}" if evidence.save_failed else text
    following = [f"df -h {evidence.run}", commands.verify(evidence), commands.resume(evidence)]
    return Finding("disk", text, following, source="events.jsonl" if failed else "df")


def _by_force(evidence: Evidence, cause: Cause) -> Finding:
    who = named(evidence, cause.ranks, cause.host)
    if cause.reason:
        text = f"{who} was killed by {cause.reason}{place(evidence)}, by a user, a scheduler or the system"
    else:
        text = (
            f"{who} ended without a word{place(evidence)}: killed by a user, a scheduler or the system, or cut off with"
        )
        text += " its machine"
    names = [f"logs/rank_{rank}{end}" for rank in cause.ranks[:1] for end in ("_output.txt", ".log")]
    following = [*commands.read(evidence, *names), commands.resume(evidence)]
    return Finding("killed", text, following, cause.ranks, cause.host, cause.reason, cause.traceback, cause.source)


def gigabytes(size: float) -> str:
    """`3.1 GB`."""
    return f"{size / 1e9:.3g} GB"
