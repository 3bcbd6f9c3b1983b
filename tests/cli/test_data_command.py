"""`samestep data prepare` as people type it."""

import json
from pathlib import Path

import pytest

from samestep import recipes
from samestep.cli.main import main
from samestep.core.errors import EXIT_INTERRUPTED
from samestep.data.prepared import open_prepared
from samestep.data.tokenizer.char import CharTokenizer


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("All the world's a stage.\n" * 40)
    (tmp_path / "chat.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{i}?", "answer": f"{i}!"}) + "\n" for i in range(9))
    )


def test_a_text_in_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", "book.txt", "--sequence_length", "32"]) == 0
    found = open_prepared(Path("book_processed"))
    assert found.metadata["sequence_length"] == 32
    shown = capsys.readouterr().out
    assert "1 document, 1,000 bytes" in shown
    assert "next: samestep train mdlm --data_dir book_processed --data.sequence_length 32" in shown


def test_shakespeare_from_a_file_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", "shakespeare", "--from", "book.txt", "--tokenizer", "char"]) == 0
    found = open_prepared(Path("shakespeare_processed"))
    assert found.metadata["sources"][0]["name"] == "book.txt"
    assert found.tokenizer.decode(found.train[:24].tolist()) == "All the world's a stage."
    assert "char" in capsys.readouterr().out


def test_the_recipe_reads_the_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    CharTokenizer.of("All the world's a stage.\n").save(tmp_path / "letters")
    args = ["data", "prepare", "book.txt", "--tokenizer", "letters", "--overwrite"]
    assert main([*args, "--recipe", "planted.sound"]) == 0
    assert "next: samestep train planted.sound --data_dir book_processed" in capsys.readouterr().out
    more = tmp_path / "shipped" / "other"
    more.mkdir(parents=True)
    reads = "from samestep import Config, Recipe\nrecipe = Recipe(Config, list, read_tokenizer=print)\n"
    (more / "__init__.py").write_text(reads)
    monkeypatch.setattr(recipes, "__path__", [*recipes.__path__, str(more.parent)])
    assert main(args) == 2
    assert "say which recipe the data is for, with --recipe: mdlm or other" in capsys.readouterr().err
    assert main([*args, "--recipe", "mdlm"]) == 0


def test_a_chat_says_what_was_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", "chat.jsonl", "out=talk", "sequence_length=40"]) == 0
    shown = capsys.readouterr().out
    assert "9 chats" in shown and "0 answers cut, 0 dropped" in shown
    assert Path("talk/metadata.json").is_file()


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["frobnicate"], "there is no samestep data frobnicate"),
        (["prepare"], "name what to prepare first"),
        (["prepare", "--out", "x"], "name what to prepare first"),
        (["prepare", "book.txt", "--from", "book.txt"], "--from goes with"),
        (["prepare", "book.txt", "--bogus", "1"], "no setting 'bogus'"),
        (["prepare", "none.txt"], "none.txt does not exist"),
        (["prepare", "book.txt", "--out", "book.txt"], "exists and is not prepared data"),
        (["prepare", "shakespeare", "--from", "none.txt"], "none.txt does not exist"),
    ],
)
def test_mistakes_are_one_sentence(args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *args]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert printed.count("\n") == 1


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--validation_fraction" in shown and "shakespeare [--from FILE]" in shown


def test_an_interrupted_command_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("samestep.data.prepared.writing.Shards.close", interrupt)
    assert main(["data", "prepare", "book.txt", "--sequence_length", "32"]) == EXIT_INTERRUPTED
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book.txt", "chat.jsonl"]
