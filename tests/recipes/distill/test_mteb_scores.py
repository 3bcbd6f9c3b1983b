"""Tasks of MTEB. Its package is installed, and its data downloaded, only by who asks for them."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from samestep import UserError, small_encoder, write_encoder
from samestep.recipes.distill.evaluation import mteb_scores


def test_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(UserError, match=r'pip install "samestep\[mteb\]"'):
        mteb_scores(tmp_path, ["NFCorpus"])


needs_mteb = pytest.mark.skipif(importlib.util.find_spec("mteb") is None, reason="mteb is not installed")


@needs_mteb
def test_a_retrieval_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own evaluation, on texts that are here: of three queries the first two are answered by themselves."""
    import mteb
    from datasets import Dataset

    texts = ["a list of numbers", "a generator yields values", "the class of an object"]
    others = [f"number {number} of many other things" for number in range(20)]

    def load_data(task: Any, *args: Any, **settings: Any) -> None:
        ids = [f"d{number}" for number in range(len(texts + others))]
        corpus = Dataset.from_dict({"id": ids, "text": texts + others, "title": [""] * len(ids)})
        queries = Dataset.from_dict({"id": ["q0", "q1", "q2"], "text": texts})
        relevant = {"q0": {"d0": 1}, "q1": {"d1": 1}, "q2": {"d22": 1}}
        task.dataset = {
            "default": {"test": {"corpus": corpus, "queries": queries, "relevant_docs": relevant, "top_ranked": None}}
        }
        task.data_loaded = True

    source = small_encoder(texts + others, width=32, layers=1, heads=2, vocabulary=300, max_length=32)
    write_encoder(tmp_path / "model", source, source.load().state_dict(), "")
    monkeypatch.setattr(type(mteb.get_task("NFCorpus")), "load_data", load_data)
    found = mteb_scores(tmp_path / "model", ["NFCorpus"])
    assert found.keys() == {"NFCorpus"} and 2 / 3 <= found["NFCorpus"] < 0.95


@needs_mteb
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
