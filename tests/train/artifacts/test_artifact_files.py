"""A file artifact appears complete or not at all."""

from pathlib import Path

import pytest

from samestep.core.errors import UserError
from samestep.core.safe_files import temporary_name
from samestep.train.artifacts.files import atomic_artifact, check_name


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_or_a_folder_replaces_the_one_before(tmp_path: Path) -> None:
    for text in ("one", "two"):
        with atomic_artifact(tmp_path / "a" / "vocab.json", is_main=True) as path:
            path.write_text(text)
            assert path != tmp_path / "a" / "vocab.json"
        with atomic_artifact(tmp_path / "tokenizer", is_main=True) as path:
            (path / "inner").mkdir(parents=True)
            (path / "inner" / text).write_text(text)
    assert (tmp_path / "a" / "vocab.json").read_text() == "two"
    assert names(tmp_path) == ["a", "a/vocab.json", "tokenizer", "tokenizer/inner", "tokenizer/inner/two"]


def test_a_failure_or_a_kill_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "vocab.json"
    target.write_text("old")

    def fail(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), atomic_artifact(target, is_main=True) as path:
        fail(path)
    with pytest.raises(UserError, match="nothing was written"), atomic_artifact(target, is_main=True):
        pass
    assert names(tmp_path) == ["vocab.json"] and target.read_text() == "old"
    temporary_name(target).mkdir()  # what a kill left
    with atomic_artifact(target, is_main=True) as path:
        path.write_text("new")
    assert names(tmp_path) == ["vocab.json"] and target.read_text() == "new"


def test_what_other_ranks_write_is_thrown_away(tmp_path: Path) -> None:
    with atomic_artifact(tmp_path / "vocab.json", is_main=False) as path:
        path.write_text("of rank 1")
    assert not names(tmp_path) and not path.exists()


@pytest.mark.parametrize("name", ["", "/vocab.json", "../vocab.json", ".hidden", "a/.hidden", "done.json"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(UserError, match="artifact"):
        check_name(name)
    check_name("tokenizer/vocab.json")
