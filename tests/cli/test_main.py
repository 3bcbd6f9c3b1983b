"""What a command lacks before it begins: open files, a working directory. One sentence, before torch is imported."""

from pathlib import Path

import pytest

from fuzz import exhausted
from fuzz.exhausted import Lack
from fuzz.real_command import run


@pytest.mark.parametrize("lack", [exhausted.open_files(20), exhausted.open_files(40), exhausted.no_working_directory()])
def test_a_start_without_what_it_needs_is_refused_with_the_cause(tmp_path: Path, lack: Lack) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    ended = run(["train", "mdlm", "--nproc", "2"], folder, before=lack.before)
    assert ended.code == 2 and not ended.problem, ended
    assert len(ended.sentences) == 1 and lack.cause in ended.sentences[0]


def test_closed_output_is_said_where_it_can_be(tmp_path: Path) -> None:
    ended = run(["fly"], tmp_path, before=exhausted.closed(1).before)
    assert ended.code == 2
    assert ended.sentences[0] == "samestep: standard output is closed, so nothing is printed there"
