"""docs/porting.md names what is there: settings, functions and commands of ours, and arguments of the libraries."""

import ast
import dataclasses
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import samestep
from samestep.cli.args import parse_train
from samestep.cli.main import VERBS
from samestep.core.errors import UserError

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "porting.md").read_text()
PORT = ROOT / "examples" / "porting" / "accelerate_after.py"
OBJECTS = {"bench": "Bench", "learner": "Learner"}
"""Names of objects that a recipe is given, and their classes."""
BY_HAND = {"in the loss", "nothing"}
"""What a row says that has no name of ours."""


class Row(NamedTuple):
    table: str
    known: str
    here: str
    note: str


def rows_of(text: str) -> Iterator[Row]:
    """The rows of tables, each with its section, or with the first cell of a table that has a name there."""
    table = ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line[1:-1].split("|")]
        if line.startswith("## "):
            table = line[3:]
        elif line.startswith("|") and cells[1] == "here":
            table = cells[0].strip("`") if "`" in cells[0] else table
        elif line.startswith("| `") and len(cells) == 3:
            yield Row(table, cells[0].strip("`"), cells[1], cells[2])


ROWS = list(rows_of(PAGE))


def codes(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


def check_ours(code: str) -> None:
    """Refuse a command, settings, or an expression with a name that is not there."""
    if code.startswith("samestep "):
        check_command(code)
    elif re.match(r"[\w.]+=", code):
        parse_train([str(PORT), *shlex.split(code)])
    else:
        for node in ast.walk(ast.parse(code, mode="eval")):
            if isinstance(node, ast.Call):
                function, bound = found(node.func)
                given = [None] * (len(node.args) + bound)
                inspect.signature(function).bind_partial(*given, **{str(word.arg): None for word in node.keywords})
            elif isinstance(node, ast.Attribute):
                found(node)


def found(node: ast.expr) -> tuple[Any, bool]:
    """What a name in an expression is, and whether it is a method, which takes an object first."""
    if isinstance(node, ast.Name):
        return getattr(samestep, OBJECTS.get(node.id, node.id)), False
    if isinstance(node, ast.Call):
        return Any, False
    assert isinstance(node, ast.Attribute)
    if isinstance(node.value, ast.Name) and node.value.id == "samestep":
        return getattr(samestep, node.attr), False
    owner = found(node.value)[0]
    if owner is Any or not inspect.isclass(owner):
        return Any, False
    if hasattr(owner, node.attr):
        return getattr(owner, node.attr), True
    sources = "".join(inspect.getsource(each) for each in owner.__mro__ if each is not object)
    assert re.search(rf"self\.{node.attr}\b|^    {node.attr}: ", sources, re.M), f"no {ast.unparse(node)}"
    return {"world": samestep.World}.get(node.attr, Any), False


@cache
def help_of(verb: str) -> str:
    command = [sys.executable, "-m", "samestep", verb, "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def check_command(command: str) -> None:
    verb, *args = shlex.split(command)[1:]
    assert verb in VERBS, command
    assert all(arg in help_of(verb) for arg in args if arg.startswith("--")), command


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.known)
def test_what_is_here_is_there(row: Row) -> None:
    ours = codes(row.here)
    assert bool(ours) != (row.here in BY_HAND)
    for code in ours:
        check_ours(code)
    for code in codes(row.note):
        if re.match(r"(bench|learner|samestep|[A-Z]\w+\()[.\w ]", code) or re.match(r"[\w.]+=\S+$", code):
            check_ours(code)
        elif re.fullmatch(r"\w+\.\w+", code) and "." in code:
            parse_train([str(PORT), f"{code}=1"])


@pytest.mark.parametrize("row", [row for row in ROWS if "(...)" in row.table], ids=lambda row: row.known)
def test_transformers_has_the_argument(row: Row) -> None:
    import transformers

    of = getattr(transformers, row.table.removesuffix("(...)"))
    for name in re.findall(r"^\w+(?==)", row.known):
        is_there = name in inspect.signature(of).parameters
        assert is_there != row.note.startswith(("transformers 4", "of TRL"))
    assert all(hasattr(transformers, name) for name in re.findall(r"\w+Callback", row.known))


def test_transformers_has_the_arguments_that_have_no_row() -> None:
    from transformers import TrainingArguments

    listed = re.search(r"Not there: .*?(?=\n## )", PAGE, re.S)
    assert listed
    names = {code for code in codes(listed[0]) if re.fullmatch("[a-z_0-9]+", code)}
    assert names and names <= {field.name for field in dataclasses.fields(TrainingArguments)}


def test_defaults_of_transformers_are_as_stated() -> None:
    from transformers import TrainingArguments

    line = next(line for line in PAGE.splitlines() if line.startswith("| TrainingArguments |"))
    config = parse_train([str(PORT), *shlex.split(codes(line)[0])])[2]
    fields = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
    names = {
        "num_train_epochs": "epochs",
        "lr_scheduler_type": "schedule",
        "adam_beta1": "beta1",
        "adam_beta2": "beta2",
    }
    names |= {"adam_epsilon": "adam_eps", "max_grad_norm": "clip", "warmup_steps": "warmup_ratio"}
    names |= {name: name for name in ("learning_rate", "weight_decay", "seed")}
    assert {ours: getattr(config, ours) for ours in names.values()} == {names[name]: fields[name] for name in names}


@pytest.mark.parametrize("row", [row for row in ROWS if row.table == "Accelerate"], ids=lambda row: row.known)
def test_accelerate_has_it(row: Row) -> None:
    import accelerate

    if method := re.match(r"accelerator\.(\w+)", row.known):
        assert hasattr(accelerate.Accelerator, method[1])
    if argument := re.match(r"Accelerator\((\w+)=", row.known):
        assert argument[1] in inspect.signature(accelerate.Accelerator).parameters


def test_lightning_has_every_name() -> None:
    import lightning

    homes = (lightning, lightning.LightningModule, lightning.Trainer, lightning.pytorch.callbacks)
    for row in ROWS:
        if row.table == "Lightning":
            names = re.match(r"(?:trainer\.|LightningModule\.)?(\w+)(?:\((\w+)=)?", row.known)
            assert names
            named = next((getattr(home, names[1]) for home in homes if hasattr(home, names[1])), None)
            assert named is not None, row.known
            assert names[2] is None or names[2] in inspect.signature(named).parameters, row.known


def test_every_table_is_read() -> None:
    assert {row.table for row in ROWS} == {"TrainingArguments(...)", "Trainer(...)", "Accelerate", "Lightning"}


@pytest.mark.parametrize(
    "wrong",
    [
        "learnin_rate=1",
        "samestep trian NAME",
        "samestep train NAME --nprocs 2",
        "bench.fed(rows)",
        "bench.feed(rows, colate=f)",
        "bench.world.ranks",
        "Fit(learner, feed, loss, averages=a)",
    ],
)
def test_a_wrong_name_is_found(wrong: str) -> None:
    with pytest.raises((AssertionError, AttributeError, TypeError, UserError)):
        check_ours(wrong)
