"""The complete fault suite: random kills, kills during saves and corruptions, with a table at the end.

PYTHONPATH=tests python -m faults.campaign --kills 100 --corruptions 50 --seed 1

Exits non-zero when a run is lost, ends in other bits, loads a damaged checkpoint, or leaves processes or folders
behind. The folder with the runs is then kept, and the same seed repeats the trials (except for the exact moments of
the kills, which no seed can fix).
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from faults.damage import KINDS
from faults.fault_injection import PHASES, SaveFault
from faults.fault_runs import FaultRuns
from faults.trials import COLUMNS, Trial, corruption, kill_during_save, launcher_kill, launcher_restart, random_kill

WORLDS = (1, 2, 3)
LAUNCHERS = 4
"""How many kills under a real launcher: few, since each has to import torch, which takes seconds."""


def kills(runs: FaultRuns, count: int, rng: random.Random, launchers: int = LAUNCHERS) -> Iterator[Trial]:
    """Trials under a real launcher, then trials until `count` kills at random moments have hit a live run."""
    for number in range(launchers):
        kind = launcher_kill if number % 2 else launcher_restart
        yield kind(runs, f"launcher-{number}", 1 + number % 3, rng)
    done = 0
    for number in range(2 * count):
        if done >= count:
            return
        trial = random_kill(runs, f"kill-{number}", rng.choice(WORLDS), rng.random() < 0.4, rng)
        done += trial.kills
        yield trial


def save_faults(world: int) -> list[SaveFault]:
    """A kill at every phase of a save, on every rank that reaches it, and on all ranks at once."""
    found = []
    for phase, ranks in PHASES.items():
        present = [rank for rank in ranks if rank < world]
        sets = [(rank,) for rank in present] + ([tuple(range(world))] if len(present) > 1 else [])
        found += [SaveFault(8, phase, victims) for victims in sets]
    return found


def kills_during_saves(runs: FaultRuns) -> Iterator[Trial]:
    """A kill at every phase of a save, at every world size."""
    for world in WORLDS:
        for number, fault in enumerate(save_faults(world)):
            yield kill_during_save(runs, f"save-{world}-{number}-{fault.phase}", world, fault)


def corruptions(runs: FaultRuns, count: int, rng: random.Random) -> Iterator[Trial]:
    """Every kind of damage on every file once, before any is repeated."""
    cases: list[tuple[int, str, str]] = []
    for number in range(count):
        if not cases:
            cases = [(world, name, kind) for world in WORLDS for name in files(world) for kind in KINDS]
            rng.shuffle(cases)
        world, name, kind = cases.pop()
        yield corruption(runs, f"corruption-{number}", world, name, kind, rng)


def files(world: int) -> list[str]:
    """All files of a checkpoint written by `world` ranks."""
    tensors = [f"__{rank}_0.distcp" for rank in range(world)]
    return ["manifest.json", "manifest.sha256", "state.json", "ranks.json", ".metadata", *tensors]


def table(trials: list[Trial]) -> str:
    """The results, one row per fault."""
    rows = [["fault", "trials", "kills", *COLUMNS]]
    for fault in dict.fromkeys(trial.fault for trial in trials):
        rows.append(_row(fault, [trial for trial in trials if trial.fault == fault]))
    rows.append(_row("all", trials))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _row(fault: str, trials: list[Trial]) -> list[str]:
    counts = [sum(column in trial.problems for trial in trials) for column in COLUMNS]
    return [fault, str(len(trials)), str(sum(trial.kills for trial in trials)), *map(str, counts)]


def run(kill_count: int, corruption_count: int, seed: int, folder: Path) -> list[Trial]:
    """Run all trials and print the progress."""
    runs, rng = FaultRuns(folder), random.Random(seed)
    for world in WORLDS:
        runs.reference(world)
    trials = []
    for trial in _all(runs, kill_count, corruption_count, rng):
        trials.append(trial)
        if len(trials) % 25 == 0:
            print(f"{len(trials)} trials, {sum(t.kills for t in trials)} kills", flush=True)
    print(f"a peer of a killed rank had to be killed as well in {len(runs.ended_by_force)} runs: {runs.ended_by_force}")
    return trials


def _all(runs: FaultRuns, kill_count: int, corruption_count: int, rng: random.Random) -> Iterator[Trial]:
    for trials in (kills_during_saves(runs), corruptions(runs, corruption_count, rng), kills(runs, kill_count, rng)):
        for trial in trials:
            for column, problem in trial.problems.items():
                print(f"{trial.label} ({trial.fault}): {column}: {problem}", flush=True)
            if not trial.problems:
                shutil.rmtree(runs.path(trial.label))
            yield trial


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--corruptions", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None, help="default: a random one")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    folder, start = Path(tempfile.mkdtemp(prefix="samestep-faults-")), time.monotonic()
    print(f"faults: seed {seed}, runs in {folder}, {os.cpu_count()} cores", flush=True)
    trials = run(options.kills, options.corruptions, seed, folder)
    print(f"\n{table(trials)}\n\nseed {seed}, {time.monotonic() - start:.0f} s")
    if any(trial.problems for trial in trials):
        print(f"the runs that failed are kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
