"""Names that may have been meant."""

import pytest

from samestep.core.near_names import did_you_mean, nearest

VERBS = ["train", "submit", "verify", "sample"]


@pytest.mark.parametrize(("name", "near"), [("trian", "train"), ("TRAIN", "train"), ("sampel", "sample")])
def test_a_misspelt_name_finds_the_one_that_was_meant(name: str, near: str) -> None:
    assert did_you_mean(name, VERBS) == f" (did you mean {near!r}?)"


@pytest.mark.parametrize("name", ["", "fly", "zzz"])
def test_a_name_like_no_other_finds_none(name: str) -> None:
    assert nearest(name, VERBS) == []
    assert did_you_mean(name, VERBS) == ""
    assert did_you_mean(name, []) == ""


def test_the_last_part_is_enough_and_dashes_are_underscores() -> None:
    names = ["log.every", "checkpoint.every-steps", "distributed.backend"]
    assert nearest("backend", names) == ["distributed.backend"]
    assert nearest("every_steps", names)[0] == "checkpoint.every-steps"


def test_the_nearest_come_first_and_each_once() -> None:
    assert nearest("aaaa", ["aaab", "aaaa", "aaaa", "bbbb", "aaba", "abaa"]) == ["aaaa", "aaab", "aaba"]
    assert nearest("aaaa", ["bbbb", "cccc"], least=0.0, at_most=1) == ["bbbb"]
