"""One trial of each fault: trouble, then a resume, then the verdict."""

import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults import same
from faults.damage import spoil
from faults.inside import Blow, train_under
from faults.yard import Yard
from samestep.core.rundir import RunDir
from samestep.why.collect import collect_evidence
from samestep.why.diagnose import diagnose

COLUMNS = ("lost", "not bit-exact", "undetected", "orphans", "leftovers", "misjudged")
KILLED = ("killed", "not_started")
STOPPING = 45.0
"""Seconds in which the ranks of a killed launcher must be gone: they may finish their step and save."""

SELDOM = {"checkpoint": {"every_steps": 5, "every_epochs": 0, "keep_last": 3}}
"""How a killed run is saved once resumed: at other steps, so that what the kill left is not written over by chance."""


@dataclass
class Trial:
    """What came of one trial."""

    fault: str
    label: str
    kills: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    """By column."""

    def note(self, column: str, problem: str) -> None:
        """Keep a problem, if there is one."""
        assert column in COLUMNS
        if problem:
            self.problems[column] = problem


def random_kill(yard: Yard, label: str, world: int, everyone: bool, chance: random.Random) -> Trial:
    """Ranks killed at random moments, now and then again while the run resumes."""
    trial = Trial("kill -9 of all ranks" if everyone else "kill -9 of one rank", label)
    wanted = chance.choice((1, 1, 2))
    for _ in range(wanted):
        victims = range(world) if everyone else [chance.randrange(world)]
        hit = yard.kill(label, world, list(victims), chance)
        trial.kills += hit
    return conclude(yard, trial, world, verdicts=KILLED if hit else ("finished",), **SELDOM)


def launcher_kill(yard: Yard, label: str, world: int, chance: random.Random) -> Trial:
    """The launcher killed: its ranks must end, too, and the run must resume."""
    trial = Trial("kill -9 of the launcher", label)
    launcher = yard.launcher(label, world)
    yard.wait_for(label, world, launcher, chance.randint(0, 11), chance.random() * 0.02)
    launcher.kill()
    trial.kills += launcher.wait() == -signal.SIGKILL
    return conclude(yard, trial, world, STOPPING, verdicts=(*KILLED, "preempted", "finished"), **SELDOM)


def launcher_restart(yard: Yard, label: str, world: int, chance: random.Random) -> Trial:
    """A rank killed under the launcher, which restarts the run by itself."""
    trial = Trial("kill -9 of one rank, restarted by the launcher", label)
    launcher = yard.launcher(label, world, restarts=1)
    yard.wait_for(label, world, launcher, chance.randint(0, 8), chance.random() * 0.02)
    process = yard.process_of(label, world, chance.randrange(world))
    if process is not None:
        os.kill(process, signal.SIGKILL)
        trial.kills += 1
    code = launcher.wait(120)
    trial.note("lost", f"the launcher ended with {code}" if code else same.lost(yard.path(label)))
    return judged(yard, trial, world)


def kill_inside(yard: Yard, label: str, world: int, blow: Blow) -> Trial:
    """Ranks killed at one instant of a save."""
    trial = Trial("kill -9 inside a save", label)
    if blow.phase == "replaced":  # only a checkpoint that exists is replaced: a damaged one, by a run that went back
        yard.copy(yard.interrupted(world), label)
        spoil(newest(yard, label), "state.json", "bit flipped", random.Random(0))
    workers = yard.begin(label, world, train_under, blow)
    yard.wait_for_end(workers, blow.ranks)
    yard.end(workers)
    codes = [workers.processes[rank].exitcode for rank in blow.ranks]
    trial.kills += codes == [-signal.SIGKILL] * len(blow.ranks)
    trial.note("undetected", "" if trial.kills else f"the blow did not fall: {codes} {workers.output(0)}")
    changes = {} if blow.phase == "replaced" else SELDOM  # a damaged checkpoint is there until it is replaced
    return conclude(yard, trial, world, verdicts=KILLED, **changes)


def corruption(yard: Yard, label: str, world: int, name: str, kind: str, chance: random.Random) -> Trial:
    """A file of the newest checkpoint damaged: said, and the checkpoint before it used."""
    trial = Trial(f"corruption: {kind}", label)
    yard.copy(yard.interrupted(world), label)
    folder = newest(yard, label)
    assert folder.name == "step_00000008"
    spoiled = spoil(folder, name, kind, chance)
    before = len(yard.events(label, "resume"))
    trial = conclude(yard, trial, world)
    said = [
        line
        for line in RunDir(yard.path(label)).log(0).read_text().splitlines()
        if f"{folder} is damaged and not used: " in line and any(part in line for part in spoiled)
    ]
    resumed = [row["step"] for row in yard.events(label, "resume")[before:]]
    trial.note("undetected", "" if said else f"{name} {kind}: the log does not say so")
    trial.note("undetected", "" if resumed[:1] == [6] else f"{name} {kind}: resumed at step {resumed}, not 6")
    return trial


def newest(yard: Yard, label: str) -> Path:
    """The newest checkpoint of a run."""
    return max(RunDir(yard.path(label)).checkpoints("fit").glob("step_*"))


def conclude(
    yard: Yard, trial: Trial, world: int, patience: float = 10.0, verdicts: Sequence[str] = (), **changes: Any
) -> Trial:
    """Resume the run to its end and look at what became of it; before that, `why` must give one of these verdicts."""
    trial.note("orphans", same.orphans(yard.folder, trial.label, patience))
    trial.note("misjudged", misjudged(RunDir(yard.path(trial.label)), verdicts))
    trial.note("lost", yard.resume(trial.label, world, **changes) or same.lost(yard.path(trial.label)))
    return judged(yard, trial, world)


def misjudged(run: RunDir, verdicts: Sequence[str]) -> str:
    """What `why` says of a run, if that is none of these; a run that never began has nothing to be said of."""
    if not verdicts or not run.config.exists():
        return ""
    found = diagnose(collect_evidence(run))
    return "" if found.verdict in verdicts else f"{found.verdict}: {found.sentence}"


def judged(yard: Yard, trial: Trial, world: int) -> Trial:
    """A run that came to its end, held against the uninterrupted one."""
    if not trial.problems.get("lost"):
        trial.note("not bit-exact", same.change(yard.reference(world), yard.path(trial.label)))
    trial.note("leftovers", same.leftovers(yard.path(trial.label)))
    trial.note("orphans", same.orphans(yard.folder, trial.label, 10.0))
    return trial
