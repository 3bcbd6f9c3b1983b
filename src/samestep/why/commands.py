"""What to type next."""

import shlex
from collections.abc import Sequence

from samestep.why.records import Evidence


def resume(evidence: Evidence, *more: str) -> str:
    """How to go on with the run, where it ran, on as many ranks of this machine if they were all on one."""
    job, run = evidence.job, str(evidence.run)
    if job is not None and job.script and not more:
        return shlex.join(["sbatch" if job.scheduler == "slurm" else "qsub", job.script])
    if job is not None:
        return amend(evidence, *more)
    hosts = {beat.host for beat in evidence.beats} | {word.host for word in evidence.words}
    ranks = ["--nproc", str(evidence.world)] if evidence.world > 1 and len(hosts - {""}) == 1 else []
    return shlex.join(["samestep", "train", "--resume", run, *ranks, *more])


def amend(evidence: Evidence, *more: str) -> str:
    """How to go on with other settings, to be added."""
    run, job = str(evidence.run), evidence.job
    words = ["train", "--resume", run] if job is None else ["submit", "--resume", run, "--on", job.scheduler]
    return shlex.join(["samestep", *words, *more])


def smaller(evidence: Evidence, remedy: Sequence[str] = ()) -> str:
    """Go on with less memory: as the rank itself said, else with half the rows at once, or less beside them."""
    half = evidence.batch_size // 2
    words = list(remedy) or ([f"--batch_size={half}"] if half else ["num_workers=0", "checkpoint.background=false"])
    return resume(evidence, *words)


def verify(evidence: Evidence) -> str:
    """Read all checkpoints."""
    return shlex.join(["samestep", "checkpoints", str(evidence.run), "--verify"])


def read(evidence: Evidence, *names: str) -> list[str]:
    """Look into the first of these files of the run that exists."""
    found = next((name for name in names if name in evidence.files), None)
    return [shlex.join(["less", str(evidence.run / found)])] if found else []


def watch_job(evidence: Evidence) -> list[str]:
    """Look after the job."""
    job = evidence.job
    if job is None:
        return []
    return [shlex.join(["squeue", "--job", job.number] if job.scheduler == "slurm" else ["qstat", job.number])]
