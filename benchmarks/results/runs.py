"""What the scripts of this folder share: documents, runs of samestep as processes, metrics, intervals, results."""

import json
import lzma
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]


def read_documents(path: Path) -> list[dict[str, str]]:
    """The records of `english_docs.py`, compressed or not."""
    data = path.read_bytes()
    text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode()
    return [json.loads(line) for line in text.splitlines()]


def write_records(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    """One line for each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


def without_template(model: Path, folder: Path) -> None:
    """The model with no chat template: it continues a text."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in model.iterdir():
        if file.name == "tokenizer_config.json":
            settings = json.loads(file.read_text())
            settings.pop("chat_template", None)
            (folder / file.name).write_text(json.dumps(settings))
        elif file.suffix == ".safetensors":
            (folder / file.name).unlink(missing_ok=True)
            os.symlink(file.resolve(), folder / file.name)
        elif file.is_file() and file.name != "chat_template.jinja":
            shutil.copy(file, folder / file.name)


def start(arguments: Sequence[Any], log: Path) -> subprocess.Popen[bytes]:
    """`samestep ...` as a process, whose output goes to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "samestep", *map(str, arguments)]
    with log.open("ab") as file:
        file.write(f"$ samestep {' '.join(map(str, arguments))}\n".encode())
        file.flush()
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)


def finish(process: subprocess.Popen[bytes], log: Path, seconds: float | None = None) -> int:
    """Its exit code; where it takes longer, it is asked to stop, which saves. What it said last is printed if it
    failed; 75 is a run that was stopped and can go on."""
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        code = process.wait(120)
    if code not in (0, 75):
        say(f"{log.name} ended with {code}:\n{log.read_text(errors='replace')[-3000:]}")
    return code


def metrics(run: Path, stage: str, name: str) -> list[dict[str, float]]:
    """The rows of a run's metrics.jsonl that have a value of this name."""
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row for row in rows if row["stage"] == stage and name in row]


def interval(values: np.ndarray, draws: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """95% of the means of rows [rows] that are drawn again with replacement."""
    generator = np.random.default_rng(seed)
    counts = [values[generator.integers(len(values), size=len(values))].mean() for _ in range(draws)]
    low, high = np.percentile(counts, [2.5, 97.5])
    return float(low), float(high)


def ratio_interval(above: np.ndarray, below: np.ndarray, draws: int = 4_000, seed: int = 0) -> tuple[float, float]:
    """95% of sum(above) / sum(below), where rows are drawn again with replacement, both alike."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        rows = generator.integers(len(above), size=len(above))
        found.append(above[rows].sum() / below[rows].sum())
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def about() -> dict[str, str]:
    """Where and when, and with what command."""
    device = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()}, {os.cpu_count()} cores"
    )
    command = " ".join(["python", *(part.replace(f"{ROOT}/", "") for part in sys.argv)])
    return {"date": time.strftime("%Y-%m-%d"), "device": device, "torch": torch.__version__, "command": command}


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Whatever there is by now; called again whenever there is more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**about(), **results}, indent=1, ensure_ascii=False) + "\n")


def say(text: str) -> None:
    """With the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
