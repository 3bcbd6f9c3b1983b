"""Run directories with one damaged file each, under every verb that reads a run.

A verb may refuse the run with a sentence; `why` and `checkpoints` say what they can. What is done all the same must
come to the same as with the intact run.
"""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.command import Result, call
from fuzz.trial import Trial, judged

TRAIN = "train mdlm --preset verify --no-log.tensorboard --schedule constant --checkpoint.keep_last 9 --name a"
STEPS = 4
DEEP = b"[" * 100_000
JUNK: tuple[Any, ...] = (None, True, -1, 1e300, "abc", [], {}, [[]], 10**23)


@dataclass(frozen=True)
class Damage:
    """A way to damage a file."""

    name: str
    apply: Callable[[Path, random.Random], None]


def _truncate(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(1, max(2, len(content) - 1))])


def _folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _wrong_field(path: Path, rng: random.Random) -> None:
    """Another type somewhere in the JSON; of JSON lines, in one of them."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = rng.randrange(len(lines))
    value = json.loads(lines[number])
    inside = value
    while isinstance(inside, dict) and inside:
        key = rng.choice(sorted(inside))
        if not isinstance(inside[key], dict) or not inside[key] or rng.random() < 0.3:
            inside[key] = rng.choice([junk for junk in JUNK if junk != inside[key]])
            break
        inside = inside[key]
    lines[number] = json.dumps(value)
    path.write_text("\n".join(lines) + "\n")


def _wrong_type(path: Path, rng: random.Random) -> None:
    path.write_text(json.dumps(rng.choice([junk for junk in JUNK if junk != {}])) + "\n")


DAMAGES = (
    Damage("deleted", lambda path, rng: path.unlink()),
    Damage("truncated", _truncate),
    Damage("empty", lambda path, rng: path.write_bytes(b"")),
    Damage("random bytes", lambda path, rng: path.write_bytes(rng.randbytes(200) + b"\n")),
    Damage("a folder instead", _folder),
    Damage("another type of JSON", _wrong_type),
    Damage("a field of another type", _wrong_field),
    Damage("JSON 100,000 deep", lambda path, rng: path.write_bytes(DEEP + b"\n")),
    Damage("no permission", lambda path, rng: path.chmod(0)),
)
FILES = (
    "config.json",
    "first_launch.json",
    "status.json",
    "metrics.jsonl",
    "events.jsonl",
    "ranks.jsonl",
    "samples.jsonl",
    "watch/rank_0.json",
    "watch/stall.json",
    "watch/rank_0_exit.json",
    "job/job.json",
    "lock",
    "logs/rank_0.log",
    "artifacts/pretrain/done.json",
    "artifacts/pretrain/corpus.json",
    "artifacts/pretrain/tokenizer/samestep_tokenizer.json",
    "checkpoints/pretrain/step_00000004/manifest.json",
    "checkpoints/pretrain/step_00000004/state.json",
)
NOT_JSON = ("lock", "logs/rank_0.log")
VERBS = {
    "why": ["why", "a"],
    "why --json": ["why", "a", "--json"],
    "checkpoints": ["checkpoints", "a"],
    "checkpoints --verify": ["checkpoints", "a", "--verify"],
    "watch": ["watch", "a", "--once"],
    "report": ["report", "a", "--out", "report.html"],
    "runs": ["runs"],
    "runs compare": ["runs", "compare", "a", "half"],
    "sample": ["sample", "a", "--prompt", "x", "--device", "cpu"],
    "export": ["export", "a", "exported"],
    "train --resume": ["train", "--resume", "half"],
    "train init_from": [*TRAIN.split(), "--max_steps", "1", "--name", "b", "--init_from", "a"],
    "train --extend": ["train", "--resume", "a", f"max_steps={STEPS + 1}", "--extend"],
}
LOOKING = ("why", "why --json", "checkpoints", "checkpoints --verify", "watch", "report", "runs", "runs compare")


class RunFiles:
    """A finished run `a`, and the same run killed before its end, `half`; each trial damages a copy."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        self._intact = folder / "intact"
        self._intact.mkdir(parents=True)
        made = call([*TRAIN.split(), "--max_steps", str(STEPS), "--checkpoint.every_steps", "2"], self._intact)
        assert made.code == 0, made.output
        run = self._intact / "runs" / "a"
        _add_reports(run)
        half = self._intact / "runs" / "half"
        shutil.copytree(run, half)
        shutil.rmtree(half / "checkpoints/pretrain/step_00000004")
        (half / "artifacts/pretrain/done.json").unlink()
        (half / "status.json").write_text('{"status": "running", "stage": "pretrain", "step": 0, "steps": 4}')
        self._expected = {verb: self._intact_result(verb) for verb in VERBS if verb not in LOOKING}

    def _intact_result(self, verb: str) -> tuple[Result, Path]:
        folder = self._copy()
        result = call(VERBS[verb], folder)
        assert result.code == 0, result.output
        return result, folder

    def trial(self, verb: str, file: str, damage: Damage, rng: random.Random) -> Trial:
        """One verb on a run with one damaged file."""
        folder = self._copy()
        path = folder / "runs" / ("half" if verb == "train --resume" else "a") / file
        label = f"{verb}: {file}: {damage.name}"
        if not path.exists():  # `half` has no done.json yet: what there may be in its place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('{"step": 4}' if path.suffix == ".json" else "")
        damage.apply(path, rng)
        result = call(VERBS[verb], folder)
        is_right = verb in LOOKING or self._outcome(verb, (result, folder), file) == self._outcome(
            verb, self._expected[verb], file
        )
        if file.startswith("checkpoints/"):  # the checkpoint before it is used, and the user is told
            is_right |= "step_00000002" in result.output or "is damaged and not used" in result.output
        shutil.rmtree(folder, ignore_errors=True)
        return judged(f"{verb}, a file damaged", label, result, is_right=is_right)

    def _copy(self) -> Path:
        self._number += 1
        return Path(shutil.copytree(self._intact, self._folder / str(self._number)))

    def _outcome(self, verb: str, done: tuple[Result, Path], file: str) -> str:
        """What a verb came to, to be compared with what it comes to on the intact run. The card of a model tells of
        metrics what there is; of a file that ends too soon the export says so."""
        result, folder = done
        if verb == "sample":
            return result.output.splitlines()[-1] if result.output else ""
        where = {"export": "exported", "train --resume": "runs/half/checkpoints/pretrain/step_00000004"}
        where |= {"train init_from": "runs/b/checkpoints/pretrain/step_00000001"}
        where |= {"train --extend": f"runs/a/checkpoints/pretrain/step_{STEPS + 1:08}"}
        return _hash(folder / where[verb], without="README.md" if file == "metrics.jsonl" else "")


def _add_reports(run: Path) -> None:
    """Files that only some runs have: of a stall, of a failure, and of a job."""
    report = {"text": "it failed", "code": 1, "rank": 0, "host": "h", "time": 1.0, "kind": "crashed"}
    stall = {"time": 1.0, "rank": 0, "host": "h", "where": "x.py:1", "sentence": "rank 0 stalled"}
    rank = {"rank": 0, "state": "busy", "activity": "step", "seconds": 3.0, "where": "x.py:1"}
    job = {"job": "1", "scheduler": "local", "script": "s", "output": "o", "stages": [], "time": 1.0}
    (run / "job").mkdir()
    (run / "watch/rank_0_exit.json").write_text(json.dumps(report))
    (run / "watch/stall.json").write_text(json.dumps({**stall, "reports": [rank]}))
    (run / "job/job.json").write_text(json.dumps({"jobs": [job]}))


def _hash(folder: Path, without: str) -> str:
    """A hash of the weights in a folder, or of all files of an exported model."""
    files = sorted(folder.glob("*.distcp")) or sorted(path for path in folder.glob("*") if path.is_file())
    files = [path for path in files if path.name != without]
    found = hashlib.sha256()
    for path in files:
        found.update(path.name.encode() + (path.read_bytes() if os.access(path, os.R_OK) else b""))
    return found.hexdigest()


def cases(rng: random.Random) -> list[tuple[str, str, Damage]]:
    """Every verb on every file damaged in every way, in a random order."""
    found = [(verb, file, damage) for verb in VERBS for file in FILES for damage in DAMAGES]
    found = [case for case in found if case[1] not in NOT_JSON or "field" not in case[2].name]
    rng.shuffle(found)
    return found


def trials(folder: Path, count: int | None, rng: random.Random) -> Iterator[Trial]:
    """So many of the cases, or all of them."""
    runs = RunFiles(folder)
    for verb, file, damage in cases(rng)[:count]:
        yield runs.trial(verb, file, damage, rng)
