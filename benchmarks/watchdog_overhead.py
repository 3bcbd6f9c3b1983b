"""What monitoring costs: the watchdog and the comparison of parameters between ranks, at steps of about 20 ms.

    python benchmarks/watchdog_overhead.py [--rounds 40]

Two CPU ranks (one thread each) train the model of overhead.py with samestep's own loop. Blocks of a hundred steps with
everything on (the defaults: the watchdog checks every second, parameters are compared every hundred steps) take turns
with blocks without, in a random order. It prints the ratio of step times with its 95% interval (paired bootstrap over
rounds), by wall-clock and by CPU time, and the CPU time of the watchdog's threads, which other load cannot distort.
"""

import argparse
import json
import random
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from contenders import Job, Samestep
from overhead import WARM_UP, block, calibrated, interval

from samestep.core.rundir import RunDir
from samestep.launching.local import start
from samestep.train.session.hooks.divergence import SameParameters
from samestep.world.watchdog.limits import WatchdogConfig
from samestep.world.watchdog.watchdog import Watchdog
from samestep.world.world import World

TARGET, BLOCK = 20.0, 100


def rank(rounds: int, folder: Path) -> None:
    """One of the two processes; rank 0 writes the times to a file."""
    world = World.join("cpu")
    job = calibrated(world, Job(64, 2, 64, WARM_UP + 4 * rounds * BLOCK, folder), TARGET)
    ours = Samestep(job, world)
    block(world, ours.advance, WARM_UP)
    bare, same = list(ours.every), SameParameters([ours.task.learner], world, BLOCK)
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    used, watched, order, rng = 0.0, 0.0, [True, False], random.Random(0)
    for _ in range(rounds):
        rng.shuffle(order)
        for on in order:
            ours.every = [same, *bare] if on else bare
            if not on:
                times[on].append(block(world, ours.advance, BLOCK))
                continue
            with Watchdog(world, RunDir(job.folder / "watched"), WatchdogConfig()):
                began, before = time.monotonic(), _watchdog_cpu_seconds()
                times[on].append(block(world, ours.advance, BLOCK))
                used, watched = used + _watchdog_cpu_seconds() - before, watched + time.monotonic() - began
    shares = world.gather(used / watched)
    if world.is_main:
        found = {"with": times[True], "without": times[False], "share": max(shares), "length": job.length}
        (folder / "result.json").write_text(json.dumps(found))
    world.barrier()


def _watchdog_cpu_seconds() -> float:
    """Seconds of CPU time that the watchdog's threads have used."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("watchdog")]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in threads if thread.ident)


def main() -> int:
    """Run the two ranks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workers = start(rank, 2, rounds, folder, logs=folder / "logs", env={"OMP_NUM_THREADS": "1"})
        codes = workers.wait(timeout=3600)
        assert codes == [0, 0], "\n".join(workers.output(r)[-4000:] for r in range(2))
        found = json.loads((folder / "result.json").read_text())
    watched, bare = np.array(found["with"]), np.array(found["without"])
    print(f"{rounds} rounds of {BLOCK} steps each way, {np.median(bare[:, 0]):.1f} ms a step")
    print("| measure | without | watched | ratio | 95% interval |\n|---|---|---|---|---|")
    for column, name in enumerate(("clock", "CPU")):
        without, with_it = bare[:, column], watched[:, column]
        low, high = interval(without, with_it)
        middle = np.median(without), np.median(with_it)
        ratio = middle[0] / middle[1]
        print(f"| {name} | {middle[0]:.2f} ms | {middle[1]:.2f} ms | {ratio:.4f} | {low:.4f} to {high:.4f} |")
    print(f"the watchdog's threads used {found['share']:.3%} of a core")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
