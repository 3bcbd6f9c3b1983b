"""The examples of pages in docs/reference that are whole programs run, and their tables name what is there."""

import inspect
import json
import re
from pathlib import Path

import pytest

from samestep.cli.main import main
from samestep.data import noise
from toys import run_on_ranks

PAGES = Path(__file__).parents[1] / "docs" / "reference"
INSIDE = {"words", "scale"}
"""Functions of the module that other parts of the package use."""


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.S)


def test_noise_is_as_its_page_says() -> None:
    exec(compile(examples("random-numbers.md")[0], "random-numbers.md", "exec"), {})


def test_the_page_has_every_function_of_noise() -> None:
    rows = re.findall(r"^\| `(\w+)\((.*?)\)` \|", (PAGES / "random-numbers.md").read_text(), re.M)
    functions = {name: found for name, found in vars(noise).items() if inspect.isfunction(found) and name[0] != "_"}
    assert {name for name, _ in rows} == set(functions) - INSIDE
    for name, stated in rows:
        takes = inspect.signature(functions[name]).parameters
        assert set(re.findall(r"\w+(?==|,|$)", stated)) - {"None", "1", "0"} <= set(takes), name


@pytest.mark.timeout(120)
def test_the_recipe_of_counts_and_metrics_is_the_same_on_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "next_token.py").write_text(examples("counts-and-metrics.md")[0])
    logged = []
    for nproc in (1, 2):
        command = ["train", str(tmp_path / "next_token.py"), "--no-log.tensorboard", "log.every=4"]
        run_on_ranks(main, nproc, [*command, f"--out={tmp_path}", f"--name=on_{nproc}"], logs=tmp_path / "logs")
        lines = (tmp_path / f"on_{nproc}" / "metrics.jsonl").read_text().splitlines()
        logged.append([json.loads(line) for line in lines])
    for name in ("nll", "long_rows", "val/nll"):
        one, two = ([row[name] for row in rows if name in row] for rows in logged)
        assert one and one == pytest.approx(two, rel=1e-5), name
    assert 0 < logged[0][0]["long_rows"] < 1
