"""What it costs to look at runs: a page of a long run and its first curve in Chromium, a list of many runs, the live
view; and what it costs a run to write its metrics.

    python benchmarks/looking.py [--steps 100000] [--metrics 40] [--ranks 8] [--runs 1000]

The runs are made up, as training writes them. Needs chromium, and playwright of the extra `test`.
"""

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from samestep.core.rundir import RunDir
from samestep.report.live_run import LiveRun
from samestep.report.live_view import LiveView
from samestep.train.logging.sinks import JsonSink, TensorBoardSink

STEP_MS, EVERY = 20.0, 10
"""A step that metrics are compared with, and the default of log.every."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--metrics", type=int, default=40)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--runs", type=int, default=1000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        long = make_run(folder / "runs" / "long", args.steps, args.metrics, args.ranks)
        print(f"a run of {args.steps:,} rows of {args.metrics} metrics, and as many of {args.ranks} ranks:")
        command = [sys.executable, "-m", "samestep"]
        page = folder / "page.html"
        seconds = timed([*command, "report", "long", "--out", str(page)], folder)
        print(f"  samestep report     {seconds:.2f} s, {page.stat().st_size / 1e6:.2f} MB")
        print(
            f"  its first curve     {statistics.median(first_curve(page) for _ in range(5)):.2f} s after it is opened"
        )
        began = time.perf_counter()
        live = LiveRun(RunDir(long))
        first = time.perf_counter() - began
        began = time.perf_counter()
        live.read()
        LiveView(live, fine=True).drawn(120, 40)
        print(f"  samestep watch      {first:.2f} s, and {time.perf_counter() - began:.3f} s each time")
        for number in range(args.runs):
            make_run(folder / "many" / f"run-{number}", 100, 10, 1)
        times = [timed([*command, "runs", "many"], folder) for _ in range(5)]
        print(f"samestep runs, {args.runs:,} runs: {statistics.median(times):.2f} s")
        milliseconds = writing(RunDir(folder / "written"), args.metrics)
        share = milliseconds / (EVERY * STEP_MS)
        print(
            f"a row of {args.metrics} metrics: {milliseconds:.3f} ms of CPU time, {share:.2%} of {EVERY} steps of 20 ms"
        )


def make_run(path: Path, steps: int, metrics: int, ranks: int) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"recipe": "mdlm", "config": {"learning_rate": 0.1}, "versions": {}}))
    (path / "status.json").write_text(json.dumps({"status": "done", "stage": "fit", "step": steps, "steps": steps}))
    launch = {"time": 1.79e9, "kind": "launch", "world": ranks, "device": "cpu", "host": "node1"}
    (path / "events.jsonl").write_text(json.dumps(launch) + "\n")
    names = [f"group{number % 5}/metric{number}" for number in range(metrics)]
    with open(path / "metrics.jsonl", "w") as file:
        for step in range(1, steps + 1):
            values = {name: math.sin(step / 1000 + number) for number, name in enumerate(names)}
            file.write(json.dumps({"stage": "fit", "step": step, "epoch": 0, **values}) + "\n")
    with open(path / "ranks.jsonl", "w") as file:
        for step in range(1, steps + 1):
            spent = {"step_seconds": [0.5] * ranks, "data_seconds": [0.01] * ranks, "memory": [1e9] * ranks}
            file.write(json.dumps({"time": 1.79e9 + step, "stage": "fit", "step": step, **spent}) + "\n")
    return path


def timed(command: list[str], folder: Path) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def first_curve(page: Path) -> float:
    """Seconds from opening the file, in a browser that runs, to the first curve that is drawn."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as library:
        browser = library.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page()
        began = time.perf_counter()
        tab.goto(page.as_uri(), wait_until="commit")
        while not tab.evaluate("window.report !== undefined && report.charts.length > 0"):
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        browser.close()
    return seconds


def writing(rundir: RunDir, metrics: int) -> float:
    """Milliseconds of CPU time, of all threads, for a row in metrics.jsonl and TensorBoard."""
    rundir.path.mkdir()
    sinks = [JsonSink(rundir, "fit", -1), TensorBoardSink(rundir, "fit", -1, {})]
    values, rows = {f"group/metric{number}": number / 7 for number in range(metrics)}, 2000
    began = time.process_time()
    for step in range(rows):
        for sink in sinks:
            sink.write(step, 0, values)
    for sink in sinks:
        sink.close()
    return (time.process_time() - began) / rows * 1000


if __name__ == "__main__":
    main()
