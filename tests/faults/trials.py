"""One trial of each fault: cause it, resume the run, and check the result."""

import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults import run_checks
from faults.damage import corrupt
from faults.fault_injection import SaveFault, train_with_fault
from faults.fault_runs import FaultRuns
from samestep.core.rundir import RunDir
from samestep.why.collect import collect_evidence
from samestep.why.diagnose import diagnose

COLUMNS = ("lost", "not bit-exact", "undetected", "orphans", "leftovers", "misjudged")
KILLED = ("killed", "not_started")
LAUNCHER_STOP_TIMEOUT = 45.0
"""Seconds within which the ranks of a killed launcher must exit: they may finish their step and save."""

OTHER_SAVE_STEPS = {"checkpoint": {"every_steps": 5, "every_epochs": 0, "keep_last": 3}}
"""Checkpoint settings of a resumed run: it saves at other steps, so that it does not overwrite what the kill left."""


@dataclass
class Trial:
    """The result of one trial."""

    fault: str
    label: str
    kills: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    """By the column of the table."""

    def add_problem(self, column: str, problem: str) -> None:
        """Record a problem; an empty one is ignored."""
        assert column in COLUMNS
        if problem:
            self.problems[column] = problem


def random_kill(runs: FaultRuns, label: str, world: int, all_ranks: bool, rng: random.Random) -> Trial:
    """Kill ranks at a random moment; sometimes again while the run resumes."""
    trial = Trial("kill -9 of all ranks" if all_ranks else "kill -9 of one rank", label)
    launches = rng.choice((1, 1, 2))
    for _ in range(launches):
        victims = range(world) if all_ranks else [rng.randrange(world)]
        hit = runs.kill(label, world, list(victims), rng)
        trial.kills += hit
    return resume_and_check(runs, trial, world, verdicts=KILLED if hit else ("finished",), **OTHER_SAVE_STEPS)


def launcher_kill(runs: FaultRuns, label: str, world: int, rng: random.Random) -> Trial:
    """Kill the launcher: its ranks must exit too, and the run must resume."""
    trial = Trial("kill -9 of the launcher", label)
    launcher = runs.start_launcher(label, world)
    runs.wait_for(label, world, launcher, rng.randint(0, 11), rng.random() * 0.02)
    launcher.kill()
    trial.kills += launcher.wait() == -signal.SIGKILL
    return resume_and_check(
        runs, trial, world, LAUNCHER_STOP_TIMEOUT, verdicts=(*KILLED, "preempted", "finished"), **OTHER_SAVE_STEPS
    )


def launcher_restart(runs: FaultRuns, label: str, world: int, rng: random.Random) -> Trial:
    """Kill a rank under the launcher, which must restart the run by itself."""
    trial = Trial("kill -9 of one rank, restarted by the launcher", label)
    launcher = runs.start_launcher(label, world, restarts=1)
    runs.wait_for(label, world, launcher, rng.randint(0, 8), rng.random() * 0.02)
    process = runs.process_of(label, world, rng.randrange(world))
    if process is not None:
        os.kill(process, signal.SIGKILL)
        trial.kills += 1
    code = launcher.wait(120)
    trial.add_problem("lost", f"the launcher ended with {code}" if code else run_checks.unfinished(runs.path(label)))
    return check_finished(runs, trial, world)


def kill_during_save(runs: FaultRuns, label: str, world: int, fault: SaveFault) -> Trial:
    """Kill ranks at one phase of a save."""
    trial = Trial("kill -9 inside a save", label)
    if fault.phase == "replaced":  # a save replaces a checkpoint only if a damaged one of the same step exists
        runs.copy(runs.interrupted(world), label)
        corrupt(newest(runs, label), "state.json", "bit flipped", random.Random(0))
    workers = runs.begin(label, world, train_with_fault, fault)
    runs.wait_for_end(workers, fault.ranks)
    runs.end(workers)
    codes = [workers.processes[rank].exitcode for rank in fault.ranks]
    trial.kills += codes == [-signal.SIGKILL] * len(fault.ranks)
    trial.add_problem("undetected", "" if trial.kills else f"the fault was not injected: {codes} {workers.output(0)}")
    changes = {} if fault.phase == "replaced" else OTHER_SAVE_STEPS  # a damaged checkpoint stays until it is replaced
    return resume_and_check(runs, trial, world, verdicts=KILLED, **changes)


def corruption(runs: FaultRuns, label: str, world: int, name: str, kind: str, rng: random.Random) -> Trial:
    """Damage a file of the newest checkpoint: the log must say so, and the run must use the checkpoint before it."""
    trial = Trial(f"corruption: {kind}", label)
    runs.copy(runs.interrupted(world), label)
    folder = newest(runs, label)
    assert folder.name == "step_00000008"
    corrupted = corrupt(folder, name, kind, rng)
    before = len(runs.events(label, "resume"))
    trial = resume_and_check(runs, trial, world)
    reports = [
        line
        for line in RunDir(runs.path(label)).log(0).read_text().splitlines()
        if f"{folder} is damaged and not used: " in line and any(part in line for part in corrupted)
    ]
    resumed = [row["step"] for row in runs.events(label, "resume")[before:]]
    trial.add_problem("undetected", "" if reports else f"{name} {kind}: the log does not say so")
    trial.add_problem("undetected", "" if resumed[:1] == [6] else f"{name} {kind}: resumed at step {resumed}, not 6")
    return trial


def newest(runs: FaultRuns, label: str) -> Path:
    """The newest checkpoint of a run."""
    return max(RunDir(runs.path(label)).checkpoints("fit").glob("step_*"))


def resume_and_check(
    runs: FaultRuns, trial: Trial, world: int, timeout: float = 10.0, verdicts: Sequence[str] = (), **changes: Any
) -> Trial:
    """Resume the run to its end and check it; before that, `samestep why` must give one of these verdicts."""
    trial.add_problem("orphans", run_checks.orphans(runs.folder, trial.label, timeout))
    trial.add_problem("misjudged", wrong_verdict(RunDir(runs.path(trial.label)), verdicts))
    trial.add_problem(
        "lost", runs.resume(trial.label, world, **changes) or run_checks.unfinished(runs.path(trial.label))
    )
    return check_finished(runs, trial, world)


def wrong_verdict(run: RunDir, verdicts: Sequence[str]) -> str:
    """What `samestep why` reports if it is not one of these verdicts; empty for a run that never started."""
    if not verdicts or not run.config.exists():
        return ""
    found = diagnose(collect_evidence(run))
    return "" if found.verdict in verdicts else f"{found.verdict}: {found.sentence}"


def check_finished(runs: FaultRuns, trial: Trial, world: int) -> Trial:
    """Compare a finished run with the uninterrupted one, and look for what it left behind."""
    if not trial.problems.get("lost"):
        trial.add_problem("not bit-exact", run_checks.first_difference(runs.reference(world), runs.path(trial.label)))
    trial.add_problem("leftovers", run_checks.leftovers(runs.path(trial.label)))
    trial.add_problem("orphans", run_checks.orphans(runs.folder, trial.label, 10.0))
    return trial
