"""The whole fault suite: random kills, kills inside saves, corruptions, with a table at the end.

PYTHONPATH=tests python -m faults.campaign --kills 100 --corruptions 50 --seed 1

Ends non-zero when a run is lost, ends in other bits, loads damage, or leaves processes or folders; the folder with
the runs is then kept, and the same seed tries the same again (but for the moments, which no seed can fix).
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
from faults.inside import PHASES, Blow
from faults.trials import COLUMNS, Trial, corruption, kill_inside, launcher_kill, launcher_restart, random_kill
from faults.yard import Yard

WORLDS = (1, 2, 3)
LAUNCHERS = 4
"""Kills under a real launcher, of each kind: each takes the seconds that importing torch takes."""


def kills(yard: Yard, count: int, chance: random.Random, launchers: int = LAUNCHERS) -> Iterator[Trial]:
    """Trials under a real launcher, then until so many kills at random moments have hit a living run."""
    for number in range(launchers):
        kind = launcher_kill if number % 2 else launcher_restart
        yield kind(yard, f"launcher-{number}", 1 + number % 3, chance)
    done = 0
    for number in range(2 * count):
        if done >= count:
            return
        trial = random_kill(yard, f"kill-{number}", chance.choice(WORLDS), chance.random() < 0.4, chance)
        done += trial.kills
        yield trial


def blows(world: int) -> list[Blow]:
    """Every instant of a save on every rank that comes to it, and on all at once."""
    found = []
    for phase, ranks in PHASES.items():
        present = [rank for rank in ranks if rank < world]
        sets = [(rank,) for rank in present] + ([tuple(range(world))] if len(present) > 1 else [])
        found += [Blow(8, phase, victims) for victims in sets]
    return found


def kills_inside(yard: Yard) -> Iterator[Trial]:
    """A kill at every instant of a save, at every world size."""
    for world in WORLDS:
        for number, blow in enumerate(blows(world)):
            yield kill_inside(yard, f"inside-{world}-{number}-{blow.phase}", world, blow)


def corruptions(yard: Yard, count: int, chance: random.Random) -> Iterator[Trial]:
    """Every kind of damage on every file comes before any comes twice."""
    cases: list[tuple[int, str, str]] = []
    for number in range(count):
        if not cases:
            cases = [(world, name, kind) for world in WORLDS for name in files(world) for kind in KINDS]
            chance.shuffle(cases)
        world, name, kind = cases.pop()
        yield corruption(yard, f"corruption-{number}", world, name, kind, chance)


def files(world: int) -> list[str]:
    """All files of a checkpoint that so many ranks wrote."""
    tensors = [f"__{rank}_0.distcp" for rank in range(world)]
    return ["manifest.json", "manifest.sha256", "state.json", "ranks.json", ".metadata", *tensors]


def table(trials: list[Trial]) -> str:
    """What came of everything, a row a fault."""
    rows = [["fault", "trials", "kills", *COLUMNS]]
    for fault in dict.fromkeys(trial.fault for trial in trials):
        rows.append(_row(fault, [trial for trial in trials if trial.fault == fault]))
    rows.append(_row("all", trials))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _row(fault: str, trials: list[Trial]) -> list[str]:
    counts = [sum(column in trial.problems for trial in trials) for column in COLUMNS]
    return [fault, str(len(trials)), str(sum(trial.kills for trial in trials)), *map(str, counts)]


def run(count: int, damages: int, seed: int, folder: Path) -> list[Trial]:
    """Everything, told as it happens."""
    yard, chance = Yard(folder), random.Random(seed)
    for world in WORLDS:
        yard.reference(world)
    trials = []
    for trial in _all(yard, count, damages, chance):
        trials.append(trial)
        if len(trials) % 25 == 0:
            print(f"{len(trials)} trials, {sum(t.kills for t in trials)} kills", flush=True)
    print(f"a peer of a killed rank had to be ended as well in {len(yard.ended_by_force)} runs: {yard.ended_by_force}")
    return trials


def _all(yard: Yard, count: int, damages: int, chance: random.Random) -> Iterator[Trial]:
    for trials in (kills_inside(yard), corruptions(yard, damages, chance), kills(yard, count, chance)):
        for trial in trials:
            for column, problem in trial.problems.items():
                print(f"{trial.label} ({trial.fault}): {column}: {problem}", flush=True)
            if not trial.problems:
                shutil.rmtree(yard.path(trial.label))
            yield trial


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--corruptions", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    folder, began = Path(tempfile.mkdtemp(prefix="samestep-faults-")), time.monotonic()
    print(f"faults: seed {seed}, runs in {folder}, {os.cpu_count()} cores", flush=True)
    trials = run(options.kills, options.corruptions, seed, folder)
    print(f"\n{table(trials)}\n\nseed {seed}, {time.monotonic() - began:.0f} s")
    if any(trial.problems for trial in trials):
        print(f"the runs that failed are kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
