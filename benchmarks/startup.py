"""How long a user waits: for `--help`, for the first step on 2 CPU ranks, and for a late step of a huge epoch; and how
much memory a rank uses for memory-mapped data of any length.

    python benchmarks/startup.py
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[1]


def seconds(*command: str, repeats: int = 9) -> float:
    """Median wall time of a command."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def first_step() -> float:
    """From the command to the first row of metrics, for the run of `make demo` on 2 ranks."""
    with tempfile.TemporaryDirectory() as folder:
        command = [BIN / "torchrun", "--nproc_per_node=2", "-m", "samestep", "train", "mdlm", "--log.every=1"]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        began = time.perf_counter()
        worker = subprocess.Popen([*command, "--name=x"], cwd=folder, env=env, stdout=subprocess.DEVNULL)
        metrics = Path(folder, "runs", "x", "metrics.jsonl")
        while not metrics.exists() or not metrics.read_text().count("\n"):
            assert worker.poll() is None, "the run ended early"
            time.sleep(0.02)
        took = time.perf_counter() - began
        worker.terminate()
        worker.wait()
    return took


def late_steps(path: str) -> None:
    """In a separate process: open a file, fetch some late steps, and print the time and the peak memory."""
    from samestep.data.feed import Feed
    from samestep.data.order import Shuffled
    from samestep.recipes.mdlm import corpus
    from samestep.recipes.mdlm.config import DataConfig
    from samestep.world.world import World

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    rows = corpus.load(DataConfig(path=path, sequence_length=64)).train
    feed = Feed(rows, Shuffled(len(rows), 64, seed=0), World.single(), micro_rows=64, length=10**9)
    for step in range(100_000, 100_020):
        feed[step]
    took = time.perf_counter() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{len(rows):>12,} rows: 20 steps from step 100,000 in {took:.3f} s, {grown:.0f} MB more memory")


def main() -> None:
    bare, shown = seconds(sys.executable, "-c", "pass"), seconds(str(BIN / "samestep"), "--help")
    print(f"samestep --help: {shown:.3f} s, python -c pass: {bare:.3f} s, difference {shown - bare:.3f} s")
    print(f"command to first step on 2 CPU ranks: {first_step():.1f} s")
    with tempfile.TemporaryDirectory() as folder:
        for size in (10**7, 10**9, 64 * 10**9):  # sparse files: they use no disk space
            path = Path(folder, f"{size}.txt")
            path.touch()
            os.truncate(path, size)
            subprocess.run([sys.executable, __file__, "late", str(path)], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["late"]:
        late_steps(sys.argv[2])
    else:
        main()
