"""The commands to type next."""

import shlex

from samestep.why.records import Evidence


def resume(evidence: Evidence, *more: str) -> str:
    """Continue the run where it ran, with the same number of ranks if all were on one machine."""
    job, run = evidence.job, str(evidence.run)
    if job is not None and job.script and not more:
        return shlex.join(["sbatch" if job.scheduler == "slurm" else "qsub", job.script])
    if job is not None:
        return resume_with_changes(evidence, *more)
    hosts = {beat.host for beat in evidence.heartbeats} | {report.host for report in evidence.exit_reports}
    ranks = ["--nproc", str(evidence.world)] if evidence.world > 1 and len(hosts - {""}) == 1 else []
    return shlex.join(["samestep", "train", "--resume", run, *ranks, *more])


def resume_with_changes(evidence: Evidence, *more: str) -> str:
    """Continue the run with other settings, which the user adds."""
    run, job = str(evidence.run), evidence.job
    args = ["train", "--resume", run] if job is None else ["submit", "--resume", run, "--on", job.scheduler]
    return shlex.join(["samestep", *args, *more])


def resume_with_less_memory(evidence: Evidence, batch_size: int | None = None) -> str:
    """Continue with less memory: the rows that the rank named, else half as many, or fewer loader workers."""
    rows = batch_size or evidence.batch_size // 2
    args = [f"--batch_size={rows}"] if rows else ["num_workers=0", "checkpoint.background=false"]
    return resume(evidence, *args)


def verify(evidence: Evidence) -> str:
    """Check every byte of all checkpoints."""
    return shlex.join(["samestep", "checkpoints", str(evidence.run), "--verify"])


def view_file(evidence: Evidence, *names: str) -> list[str]:
    """Open the first of these files of the run that exists."""
    found = next((name for name in names if name in evidence.files), None)
    return [shlex.join(["less", str(evidence.run / found)])] if found else []


def watch_job(evidence: Evidence) -> list[str]:
    """Show the state of the job."""
    job = evidence.job
    if job is None:
        return []
    return [shlex.join(["squeue", "--job", job.number] if job.scheduler == "slurm" else ["qstat", job.number])]
