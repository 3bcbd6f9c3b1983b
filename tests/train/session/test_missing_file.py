"""A file that a setting names and that does not exist is refused with the setting's name."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cli.conftest import Shell
from samestep.train.record.config import Config
from samestep.train.session.missing_file import missing_file

RECIPE = """
from dataclasses import dataclass
from pathlib import Path
from samestep import Config, Recipe, Stage

@dataclass(frozen=True)
class Reading(Config):
    text: str = "text.txt"

def build(bench):
    Path(bench.config.text).read_text()
    Path("part of the recipe").read_text()

recipe = Recipe(config=Reading, stages=lambda config: [Stage("read", build)])
"""


@dataclass(frozen=True)
class Data:
    """Where the data is."""

    texts: str = ""


@dataclass(frozen=True)
class Reading(Config):
    """A recipe that reads files."""

    words: str = "words.txt"
    data: Data = field(default_factory=Data)


def looked_for(name: str | Path) -> FileNotFoundError:
    with pytest.raises(FileNotFoundError) as found:
        Path(name).read_text() if isinstance(name, Path) else open(name).close()
    return found.value


def test_the_setting_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = Reading(data=Data("my/texts.txt"))
    for name, file in (("words", "words.txt"), ("data.texts", Path("my/texts.txt"))):
        sentence = f"Set {name} to a file that exists; there is no {file} (from {tmp_path})."
        assert str(missing_file(looked_for(file), config)) == sentence
    assert missing_file(looked_for("other.txt"), config) is None
    assert missing_file(looked_for(""), Reading()) is None, "a setting without a value names no file"


def test_one_sentence_for_a_setting_and_a_traceback_for_the_recipe(shell: Shell) -> None:
    (shell.folder / "reading.py").write_text(RECIPE)
    codes, output = shell("train", "reading.py", "--no-log.tensorboard")
    assert codes == [2], output
    assert f"Set text to a file that exists; there is no text.txt (from {shell.folder})." in output
    assert "Traceback" not in output
    (shell.folder / "text.txt").write_text("here")
    codes, output = shell("train", "reading.py", "--no-log.tensorboard")
    assert codes == [1] and "Traceback" in output, output
