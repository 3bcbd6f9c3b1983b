"""Damaged checkpoints: a selection; and tests that the checks of the suite find anything at all."""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from faults import run_checks
from faults.damage import KINDS, corrupt
from faults.fault_runs import FaultRuns
from faults.trials import corruption

pytestmark = pytest.mark.timeout(900)
NAMES = ("manifest.json", ".metadata", "__1_0.distcp", "state.json", "manifest.sha256")
CASES = [(NAMES[(index + offset) % len(NAMES)], kind) for offset in (0, 2) for index, kind in enumerate(KINDS)]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_damaged_checkpoint_is_named_and_not_used(runs: FaultRuns, name: str, kind: str) -> None:
    label = f"damage-{name.strip('._')}-{kind}".replace(" ", "-")
    trial = corruption(runs, label, 2, name, kind, random.Random(label))
    assert not trial.problems, trial


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_damage_changes_a_file(tmp_path: Path, kind: str) -> None:
    before = {"a": b"abcdef", "b": b"ghi"}
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    corrupted = corrupt(tmp_path, "a", kind, random.Random(0))
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name for name in before if after.get(name) != before[name]} == set(corrupted)


def test_the_checks_see_a_different_run(runs: FaultRuns) -> None:
    assert runs.run("other-rate", 2, learning_rate=0.0200001)[0] == [0, 0]
    reference = runs.reference(2)
    assert "rank 0: from" in run_checks.first_difference(reference, runs.path("other-rate"))
    copy = runs.path(runs.copy("reference-2", "cut"))
    metrics = copy / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join([*lines, lines[-1]]))
    assert "metrics.jsonl differs" in run_checks.first_difference(reference, copy), "a duplicate row"
    metrics.write_text("".join(lines))
    assert run_checks.first_difference(reference, copy) == ""
    evidence = copy / "evidence" / "world_2_rank_1.jsonl"
    evidence.write_text("".join(evidence.read_text().splitlines(keepends=True)[:-1]))
    assert "rank 1 never finished the steps [11]" in run_checks.first_difference(reference, copy)


def test_the_checks_see_what_is_left_behind(runs: FaultRuns) -> None:
    copy = runs.path(runs.copy("reference-2", "left"))
    assert run_checks.leftovers(copy) == ""
    (copy / "checkpoints" / "fit" / ".staging_step_00000012").mkdir()
    assert run_checks.leftovers(copy) == "checkpoints/fit/.staging_step_00000012"
    assert run_checks.unfinished(copy) == ""
    shutil.rmtree(copy / "artifacts")
    assert run_checks.unfinished(copy) == "it did not reach its last step"
    with open(copy / "opened", "w") as opened:
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=opened)
    try:
        assert str(process.pid) in run_checks.orphans(runs.folder, "left", 0.2)
        assert run_checks.orphans(runs.folder, "cut", 0.0) == ""
    finally:
        process.kill()
        process.wait()
    assert run_checks.orphans(runs.folder, "left", 0.0) == ""
    command = [sys.executable, "-c", "input()", "name=left"]
    started = [subprocess.Popen(command + more, stdin=subprocess.PIPE) for more in ([f"--out={runs.folder}/"], [])]
    try:
        assert run_checks.orphans(runs.folder, "left", 0.2).count("process ") == 1, "not a run of this name elsewhere"
    finally:
        for process in started:
            process.kill()
            process.wait()
