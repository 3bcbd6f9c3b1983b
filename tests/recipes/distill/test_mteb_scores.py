"""Tasks of MTEB: what is refused. Its package and its data are downloaded only by who asks for them."""

import importlib.util
import sys
from pathlib import Path

import pytest

from samestep import UserError
from samestep.recipes.distill.mteb_scores import mteb_scores


def test_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(UserError, match=r'pip install "samestep\[mteb\]"'):
        mteb_scores(tmp_path, ["NFCorpus"])


@pytest.mark.skipif(importlib.util.find_spec("mteb") is None, reason="mteb is not installed")
@pytest.mark.parametrize(
    ("files", "tasks", "sentence"),
    [
        (["modules.json"], [], "Name at least one task"),
        ([], ["NFCorpus"], r"has no modules\.json"),
        (["modules.json"], ["NFCorpuss"], "'NFCorpuss' not found"),
    ],
)
def test_what_mteb_cannot_evaluate(files: list[str], tasks: list[str], sentence: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_text("[]")
    with pytest.raises(UserError, match=sentence):
        mteb_scores(tmp_path, tasks)
