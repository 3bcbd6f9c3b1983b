"""Every row of docs/coming-from.md: what people had and what it is here start the same training. Commands and scripts
that people had are typed in the tests of the projects."""

import inspect
import json
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import samestep
from samestep.cli.args import parse_train
from samestep.core.config import split_options
from samestep.train.api import recipe_registry

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "coming-from.md"
RECIPES = ("mdlm", "gan", "dpo", "distill", "lens")


class Row(NamedTuple):
    section: str
    known: str
    here: str
    beside: str = ""
    """The setting that it has an effect beside."""


def rows_of(text: str) -> list[Row]:
    """The rows of tables, and the items of lists for what is too long for a table: "- `known` is `here`; note"."""
    section, found = "", list[Row]()
    for line in re.sub(r"\n +", " ", text).splitlines():
        section = line[3:] if line.startswith("## ") else section
        if line.startswith("| `"):
            known, here, note = (cell.strip() for cell in line[1:-1].split("|"))
        elif item := re.fullmatch(r"- (`[^`]*`) is (`[^`]*`)(?:; (.*))?", line):
            known, here, note = (part or "" for part in item.groups())
        else:
            assert not line.startswith("- "), f"an item that no test reads: {line}"
            continue
        beside = re.match("with `(.*?)`", note)
        found.append(Row(section, known.strip("`"), here.strip("`"), beside[1] if beside else ""))
    return found


ROWS = rows_of(PAGE.read_text())
SETTING_ROWS = [row for row in ROWS if row.section in RECIPES]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with what the rows name. Nothing is read but settings: models and data need not be there."""
    (tmp_path / "checkpoint_epoch_3.pt").touch()
    (tmp_path / "ddp_config.json").write_text(json.dumps({"batch_size": 3, "output_dir": "x", "phase1_lr": 1e-4}))
    monkeypatch.chdir(tmp_path)
    find = recipe_registry.find_recipe
    monkeypatch.setattr(recipe_registry, "find_recipe", lambda name: replace(find(name), resolve=None))
    return tmp_path


def meaning(args: list[str]) -> Any:
    """What a command line of samestep amounts to."""
    verb, *rest = args
    assert verb == "train", args
    launch, rest = split_options(rest, ["nproc"])
    return launch, parse_train(rest)[2]


@cache
def defaults(recipe: str) -> Any:
    """A training without any settings."""
    return meaning(["train", recipe])


@pytest.mark.parametrize("row", SETTING_ROWS, ids=lambda row: f"{row.section} {row.known}")
def test_a_flag_sets_what_the_setting_sets(row: Row, folder: Path) -> None:
    beside = shlex.split(row.beside)
    known, here = (meaning(["train", row.section, *shlex.split(side), *beside]) for side in (row.known, row.here))
    assert known == here
    assert known != defaults(row.section), "an example should change something"


@pytest.mark.parametrize("row", [row for row in ROWS if row.section.startswith("Functions")], ids=lambda row: row.known)
def test_a_function_takes_these_args(row: Row) -> None:
    name, _, args = row.known.rstrip(")").partition("(")
    assert row.here == f"samestep.{name}" and name in samestep.__all__
    given = [arg for arg in args.split(", ") if arg]
    named = {arg.partition("=")[0]: 0 for arg in given if "=" in arg}
    inspect.signature(getattr(samestep, name)).bind(*[arg for arg in given if "=" not in arg], **named)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_other_name_of_a_setting_has_a_row(recipe: str) -> None:
    known = {re.split("[ =]", row.known.lstrip("-"))[0] for row in SETTING_ROWS if row.section == recipe}
    assert set(recipe_registry.find_recipe(recipe).aliases) <= known


def test_every_recipe_has_a_section() -> None:
    assert set(RECIPES) == set(recipe_registry.known_recipes())
    assert {row.section for row in ROWS} >= set(RECIPES)


def test_a_wrong_row_is_found(folder: Path) -> None:
    with pytest.raises(AssertionError):
        test_a_flag_sets_what_the_setting_sets(Row("dpo", "--lr 1e-5", "learning_rate=2e-5"), folder)
