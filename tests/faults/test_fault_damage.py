"""Damaged checkpoints: a selection; and whether the judges of the suite see anything at all."""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from faults import same
from faults.damage import KINDS, spoil
from faults.trials import corruption
from faults.yard import Yard

pytestmark = pytest.mark.timeout(120)
NAMES = ("manifest.json", ".metadata", "__1_0.distcp", "state.json", "manifest.sha256")
CASES = [(NAMES[(place + turn) % len(NAMES)], kind) for turn in (0, 2) for place, kind in enumerate(KINDS)]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_damaged_checkpoint_is_named_and_not_used(yard: Yard, name: str, kind: str) -> None:
    label = f"damage-{name.strip('._')}-{kind}".replace(" ", "-")
    trial = corruption(yard, label, 2, name, kind, random.Random(label))
    assert not trial.problems, trial


@pytest.mark.parametrize("kind", KINDS)
def test_every_damage_damages(tmp_path: Path, kind: str) -> None:
    before = {"a": b"abcdef", "b": b"ghi"}
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    spoiled = spoil(tmp_path, "a", kind, random.Random(0))
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name for name in before if after.get(name) != before[name]} == set(spoiled)


def test_the_judges_see_another_run(yard: Yard) -> None:
    assert yard.run("other-rate", 2, learning_rate=0.0200001)[0] == [0, 0]
    reference = yard.reference(2)
    assert "rank 0: from" in same.change(reference, yard.path("other-rate"))
    copy = yard.path(yard.copy("reference-2", "cut"))
    metrics = copy / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join([*lines, lines[-1]]))
    assert "metrics.jsonl differs" in same.change(reference, copy), "a row twice"
    metrics.write_text("".join(lines))
    assert same.change(reference, copy) == ""
    evidence = copy / "evidence" / "world_2_rank_1.jsonl"
    evidence.write_text("".join(evidence.read_text().splitlines(keepends=True)[:-1]))
    assert "rank 1 never finished the steps [11]" in same.change(reference, copy)


def test_the_judges_see_what_is_left(yard: Yard) -> None:
    copy = yard.path(yard.copy("reference-2", "left"))
    assert same.leftovers(copy) == ""
    (copy / "checkpoints" / "fit" / ".staging_step_00000012").mkdir()
    assert same.leftovers(copy) == "checkpoints/fit/.staging_step_00000012"
    assert same.lost(copy) == ""
    shutil.rmtree(copy / "artifacts")
    assert same.lost(copy) == "it did not come to its last step"
    with open(copy / "held", "w") as held:
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=held)
    try:
        assert str(process.pid) in same.orphans(yard.folder, "left", 0.2)
        assert same.orphans(yard.folder, "cut", 0.0) == ""
    finally:
        process.kill()
        process.wait()
    assert same.orphans(yard.folder, "left", 0.0) == ""
