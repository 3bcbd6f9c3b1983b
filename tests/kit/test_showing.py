"""What `samestep sample` prints."""

import pytest

from samestep.kit.showing import show_lines, show_texts


def test_several_texts_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    show_texts([{"text": "one\ntwo"}, {"text": "three"}])
    assert capsys.readouterr().out == "--- 1 of 2 ---\none\ntwo\n--- 2 of 2 ---\nthree\n"
    show_texts([{"text": "alone"}])
    assert capsys.readouterr().out == "alone\n"


def test_a_record_without_a_text_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show_texts([{"at": 0.5, "name": "é"}])
    assert capsys.readouterr().out == '{"at": 0.5, "name": "é"}\n'


def test_lines_have_nothing_between_them(capsys: pytest.CaptureFixture[str]) -> None:
    show_lines(None, [{"text": "one"}, {"text": "two"}])
    assert capsys.readouterr().out == "one\ntwo\n"
