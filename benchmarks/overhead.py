"""What the training loop costs: samestep compared with a hand-written DDP loop, Accelerate, HF Trainer and Fabric.

    python benchmarks/overhead.py                                 steps of about 20 ms and 200 ms, about 15 minutes
    python benchmarks/overhead.py --steps-ms 20 --rounds 80
    python benchmarks/overhead.py --breakdown                     also where samestep's own step spends its time

All train the same small transformer on the same rows with the same AdamW, clipping and cosine schedule, in the same
two CPU processes (one thread each) and the same process group. In every round each loop does a short block of steps, in
a random order, so that a slow moment of the machine affects all of them alike. Two copies of one network can differ by
2% in speed, depending on their place in memory; so the hand-written loop and samestep train the same copy.

A ratio is the median step time of the hand-written loop over that of a contender (1.0: as fast as by hand); its
interval is a paired bootstrap over rounds.
`pip install 'samestep[bench]'` installs the other libraries; those that are missing are left out.
"""

import argparse
import gc
import importlib.util
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contenders import LOG_EVERY, OTHERS, RANKS, ROWS, Advance, Job, Samestep, by_hand, fresh

from samestep.launching.local import start
from samestep.train.record.progress import Tick
from samestep.world.world import World

WARM_UP, BREAKDOWN = 5, 100
LONG = 60
"""Steps of at least so many milliseconds use a larger network and fewer rounds."""
LIMIT = 0.97
"""The lower end of samestep's interval must be at least this."""


def installed(packages: list[str]) -> bool:
    return all(importlib.util.find_spec(package) for package in packages)


def block(world: World, advance: Advance, wanted: int) -> tuple[float, float]:
    """Milliseconds per step, when all ranks start together: wall-clock time of the slower rank, and mean CPU time."""
    world.barrier()
    began, used = time.perf_counter(), time.process_time()
    advance(wanted)
    mine = [(time.perf_counter() - began) / wanted * 1000, (time.process_time() - used) / wanted * 1000]
    clock, cpu = zip(*world.gather(mine))
    return max(clock), sum(cpu) / len(cpu)


def pin_to_cores(world: World) -> None:
    """Pin each rank to its own cores, as mpiexec does; otherwise both may share a core for a while."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= world.size:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), cores[world.rank :: world.size])


def calibrated(world: World, job: Job, target: float) -> Job:
    """The job with the row length at which the hand-written loop takes about `target` milliseconds per step."""
    for _ in range(3):
        advance = by_hand(job, *fresh(job))
        block(world, advance, WARM_UP)
        took = min(block(world, advance, 3)[0] for _ in range(6))  # the block with the least interference
        job = replace(job, length=max(4, round(job.length * target / took)))
    return job


def breakdown(world: World, ours: Samestep) -> dict[str, float]:
    """Milliseconds per step in each part of samestep's loop, on this rank."""
    spent: dict[str, float] = {}

    def timed_call(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = call(*args, **kwargs)
            spent[name] = spent.get(name, 0.0) + (time.perf_counter() - began) / BREAKDOWN * 1000
            return result

        return timed

    learner, feed = ours.task.learner, ours.task.feed
    fetch = timed_call("feed: order, rows, weights", feed.__getitem__)

    def step(tick: Tick) -> Any:
        return learner.update(fetch(tick.step), ours.loss)

    changed: list[tuple[Any, str, str]] = [
        (learner, "_backward", "update: forward, backward, all-reduce"),
        (learner, "_apply", "update: clip, check, AdamW, metrics"),
        (ours.stop, "agreed", "agreement: stop and save"),
        *((event, "after_step", "log: metrics, sinks, screen") for event in ours.every),
    ]
    for owner, method, name in changed:
        setattr(owner, method, timed_call(name, getattr(owner, method)))
    ours.task.step = step  # type: ignore[method-assign]
    total, _ = block(world, ours.advance, BREAKDOWN)
    return {**spent, "the rest": total - sum(spent.values()), "a step": total}


def rank(target: float, rounds: int, with_breakdown: bool, folder: Path) -> None:
    """One of the two processes: measures one step size; rank 0 writes the times to a file."""
    world = World.join("cpu")
    pin_to_cores(world)
    wanted = max(4, min(LOG_EVERY, round(800 / target)))  # short steps: each block logs metrics once
    steps = WARM_UP + rounds * wanted + (BREAKDOWN if with_breakdown else 0)
    width, layers = (64, 2) if target < LONG else (128, 6)
    job = calibrated(world, Job(width, layers, 64, steps, folder), target)
    ours = Samestep(job, world)
    contenders = {"by hand": by_hand(job, *ours.parts), "samestep": ours.advance}
    contenders |= {name: make(job) for name, (packages, make) in OTHERS.items() if installed(packages)}
    for advance in contenders.values():
        block(world, advance, WARM_UP)
    gc.collect()
    gc.freeze()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    order, rng = list(contenders), random.Random(0)  # the same order on both ranks
    for _ in range(rounds):
        rng.shuffle(order)
        for name in order:
            times[name].append(block(world, contenders[name], wanted))
    parts = breakdown(world, ours) if with_breakdown else {}
    if world.is_main:
        size = sum(p.numel() for p in job.model().parameters())
        about = f"{size:,} parameters, {ROWS} rows of {job.length} tokens a rank, {rounds} rounds of {wanted} steps"
        (folder / "result.json").write_text(json.dumps({"times": times, "parts": parts, "about": about}))
    world.barrier()
    os._exit(0)  # HF Trainer's thread never ends by itself


def interval(hand: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """The 95% interval of the ratio of medians, by a bootstrap over rounds; both times of a round stay a pair."""
    drawn = np.random.default_rng(0).integers(len(hand), size=(10_000, len(hand)))
    low, high = np.quantile(np.median(hand[drawn], axis=1) / np.median(other[drawn], axis=1), [0.025, 0.975])
    return float(low), float(high)


def measure(target: float, rounds: int, with_breakdown: bool) -> bool:
    """Run one step size and print its table; returns whether samestep's lower bound is high enough."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        workers = start(rank, RANKS, target, rounds, with_breakdown, folder, logs=folder / "logs", env=env)
        codes = workers.wait(timeout=1800)
        assert codes == [0] * RANKS, "\n".join(workers.output(r)[-4000:] for r in range(RANKS))
        found = json.loads((folder / "result.json").read_text())
    times = {name: np.array(values) for name, values in found["times"].items()}
    hand = times["by hand"][:, 0]
    print(f"\nsteps of {np.median(hand):.1f} ms (asked for {target:g}): {found['about']}")
    print(f"{'':12}{'median ms':>10}{'ratio':>8}   {'95% interval':18}{'CPU ms':>8}")
    for name, both in times.items():
        clock, cpu = np.median(both, axis=0)
        low, high = interval(hand, both[:, 0])
        print(f"{name:12}{clock:10.2f}{np.median(hand) / clock:8.3f}   {low:.3f} to {high:.3f}{cpu:11.2f}")
    for part, spent in found["parts"].items():
        print(f"    {part:40}{spent:9.3f} ms")
    return interval(hand, times["samestep"][:, 0])[0] >= LIMIT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps-ms", type=float, nargs="+", default=[20, 200], help="step times to measure")
    parser.add_argument(
        "--rounds", type=int, help="rounds of one block per contender (default: 400; 100 for long steps)"
    )
    parser.add_argument("--breakdown", action="store_true", help="also time the parts of samestep's loop")
    options = parser.parse_args()
    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores, {RANKS} ranks of 1 thread, load {os.getloadavg()[0]:.1f}"
    )
    for name, (packages, _) in OTHERS.items():
        if not installed(packages):
            print(f"{name} is left out: pip install 'samestep[bench]' installs it")
    fast = [
        measure(target, options.rounds or (400 if target < LONG else 100), options.breakdown)
        for target in options.steps_ms
    ]
    print(f"\nlower bound of samestep at least {LIMIT} at every step size: {'yes' if all(fast) else 'NO'}")


if __name__ == "__main__":
    main()
