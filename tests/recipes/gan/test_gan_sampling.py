"""`samestep sample` of a generator: the same texts on any number of ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from samestep.cli.main import main
from samestep.launching import local

pytestmark = pytest.mark.timeout(900)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_same_at_any_number_of_ranks(runs: Path, tmp_path: Path) -> None:
    """Of prompts that differ in length, in batches of 3: which rows are computed together is the same, too."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(["Tell me.", "Write a long story about the sea.", "Why?", "And now?", "So?"]))
    args = ["sample", str(runs / "a"), "--device", "cpu", f"--prompts={prompts}", "--samples=2", "--seed=4"]
    files = {ranks: tmp_path / f"{ranks}.jsonl" for ranks in (1, 2, 3)}
    started = [
        local.start(main, ranks, [*args, f"--out={file}"], logs=tmp_path / f"out_{ranks}")
        for ranks, file in files.items()
    ]
    for workers in started:
        assert not any(workers.wait(60)), workers.output(0)
    alone, two, three = map(read, files.values())
    assert alone == two == three
    assert [row["sample"] for row in alone] == [0, 1] * 5
    assert [row["prompt"] for row in alone[::2]] == prompts.read_text().splitlines()
    assert len({row["text"] for row in alone}) == 10, "each has noise of its own"


def test_without_a_prompt_a_held_out_one_is_used(runs: Path, tmp_path: Path) -> None:
    assert main(["sample", str(runs / "a"), "--device", "cpu", f"--out={tmp_path / 'one.jsonl'}"]) == 0
    (row,) = read(tmp_path / "one.jsonl")
    assert row["prompt"].startswith("Write a short story.")
