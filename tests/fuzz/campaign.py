"""Careless input to every verb, runs that lack something, and signals while a run starts, with a table at the end.

PYTHONPATH=tests python -m fuzz.campaign --seed 1

Exits non-zero when one ends in a traceback or hangs, or when nonsense is silently accepted. The same seed repeats the
trials.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from fuzz import exhausted, path_args, preload, run_files, setting_values, start_signals
from fuzz.trial import BAD, Trial, table

KINDS = {
    "settings": setting_values,
    "paths": path_args,
    "run_files": run_files,
    "exhausted": exhausted,
    "start_signals": start_signals,
}
COUNTS = {"settings": 1000, "paths": 200, "run_files": 300, "exhausted": 40, "start_signals": 36}
"""How many trials of each kind: minutes on two cores. There are about 30,000, 1,000, 1,400, 84 and 36 of them."""


def trials(folder: Path, counts: Mapping[str, int], seed: int) -> Iterator[Trial]:
    """So many trials of each kind."""
    preload.everything()
    for name, count in ((name, count) for name, count in counts.items() if count):
        yield from KINDS[name].trials(folder / name, count, random.Random(seed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, count in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=count, help=f"trials of this kind ({count})")
    parser.add_argument("--seed", type=int, default=None, help="default: a random one")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    folder, start = Path(tempfile.mkdtemp(prefix="samestep-fuzz-")), time.monotonic()
    print(f"fuzz: seed {seed}, {os.cpu_count()} cores", flush=True)
    found = []
    for trial in trials(folder, {name: getattr(options, name) for name in COUNTS}, seed):
        found.append(trial)
        if trial.outcome in BAD:
            print(f"{trial.outcome}: {trial.label}\n{trial.detail}\n", flush=True)
    print(f"\n{table(found)}\n\nseed {seed}, {time.monotonic() - start:.0f} s")
    shutil.rmtree(folder, ignore_errors=True)
    return int(any(trial.outcome in BAD for trial in found))


if __name__ == "__main__":
    sys.exit(main())
