"""Runs in a notebook: what they show is what their files say now, in whatever state these are."""

import base64
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import samestep
from page_parts import PageParts
from report.made_runs import lines, make_run
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.report import metrics_table
from samestep.report.curve_plots import CurvePlot
from samestep.report.metrics_table import MetricsTable

DOCS = Path(__file__).parents[2] / "docs" / "looking-at-runs.md"
HOSTILE = "</svg></td><script>alert(1)</script>\x1b[2J<img src=x onerror=alert(1)>"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither pandas nor matplotlib is there."""
    for name in ("pandas", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder runs, here."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def drawings(html: str) -> list[str]:
    """The drawings that HTML holds; each has to be XML."""
    found = [base64.b64decode(held).decode() for held in re.findall(r"data:image/svg\+xml;base64,([^\"]*)", html)]
    for each in found:
        ElementTree.fromstring(each)
    return found


def test_a_run_says_what_its_files_say_now(folder: Path) -> None:
    made = make_run(folder, api_key="sk-not-for-you")
    run = samestep.run("demo-1")
    assert (run.name, run.path, run.recipe, run.state) == ("demo-1", made.path.absolute(), "mdlm", "done")
    assert (run.stage, run.step, run.steps) == ("fit", 40, 40)
    assert run.best is not None and (run.best.metric, run.best.value, run.best.step) == ("val/nll", 0.05, 40)
    assert run.settings["log"] == {"every": 2} and run.settings["api_key"] == "(hidden)"
    assert [event["kind"] for event in run.events][:2] == ["launch", "stage"]
    assert re.fullmatch(r"demo-1: mdlm, done, step 40/40, best val/nll 0\.05 at 40, written .* ago", repr(run))
    made.status.write_text(json.dumps({"status": "failed", "step": 50}))
    assert (run.state, run.step) == ("failed", 50)
    assert samestep.run(made.path).state == "failed", "by its path too"


def test_what_is_looked_at_again_stays_what_it_was_when_the_folder_changes(folder: Path) -> None:
    make_run(folder)
    run = samestep.run("demo-1")
    os.chdir("/")
    assert run.state == "done"


def test_secrets_of_a_command_are_hidden(folder: Path) -> None:
    made = make_run(folder)
    lines(made.events, [{"kind": "launch", "command": ["gan", "api_key=sk-not-for-you", "out=/home/me/runs"]}])
    assert samestep.run("demo-1").events == [
        {"kind": "launch", "command": ["gan", "api_key=(hidden)", "out=~/runs"]},
    ]


def logged_twice(made: RunDir) -> None:
    """Two stages, the first of which was killed after step 4 and began again at step 3."""
    rows: list[dict[str, Any]] = [
        {"stage": "a", "step": step, "epoch": 0, "loss": float(step)} for step in (1, 2, 3, 4)
    ]
    rows += [{"stage": "a", "step": step, "epoch": 1, "loss": 10.0 * step, "lr": 0.5} for step in (3, 4, 5)]
    rows += [{"stage": "a", "step": 4, "epoch": 1, "val/nll": 7.0}, {"stage": "b", "step": 1, "epoch": 0, "acc": None}]
    lines(made.metrics, rows)


EXPECTED: dict[str, list[Any]] = {
    "stage": ["a", "a", "a", "a", "a", "b"],
    "step": [1, 2, 3, 4, 5, 1],
    "epoch": [0, 0, 1, 1, 1, 0],
    "loss": [1, 2, 30, 40, 50, np.nan],
    "lr": [np.nan, np.nan, 0.5, 0.5, 0.5, np.nan],
    "val/nll": [np.nan, np.nan, np.nan, 7, np.nan, np.nan],
    "acc": [np.nan] * 6,
}


def test_metrics_have_a_row_for_each_step_of_a_stage(folder: Path) -> None:
    pandas = pytest.importorskip("pandas")
    logged_twice(make_run(folder))
    found = samestep.run("demo-1").metrics
    assert isinstance(found, pandas.DataFrame)
    pandas.testing.assert_frame_equal(found, pandas.DataFrame(EXPECTED), check_dtype=False)
    assert found["epoch"].dtype == np.int64


@pytest.mark.usefixtures("bare")
def test_the_same_without_pandas(folder: Path) -> None:
    logged_twice(make_run(folder))
    found = samestep.run("demo-1").metrics
    assert isinstance(found, MetricsTable)
    assert found.columns == list(EXPECTED) and len(found) == 6
    for name, values in EXPECTED.items():
        if name == "stage":
            assert found[name].tolist() == values
        else:
            np.testing.assert_array_equal(found[name], values)
    rows = list(found)
    assert rows[3] == {**rows[3], "stage": "a", "step": 4, "loss": 40.0, "val/nll": 7.0}
    assert repr(found).endswith("6 rows, 7 columns")
    assert PageParts(found._repr_html_()).names.count("tr") == 7


@pytest.mark.usefixtures("bare")
def test_a_table_shows_its_first_and_last_rows(folder: Path) -> None:
    make_run(folder, steps=400)
    found = samestep.run("demo-1").metrics
    assert len(found) == 200
    cells = PageParts(found._repr_html_()).texts["td"]
    assert "2" in cells and "400" in cells and "200" not in cells and "..." in cells


def test_a_run_in_progress_gives_new_values(folder: Path) -> None:
    made = make_run(folder)
    run = samestep.run("demo-1")
    assert len(run.metrics) == 20
    with open(made.metrics, "a") as file:
        file.write(json.dumps({"stage": "fit", "step": 41, "epoch": 0, "loss": 0.125}) + '\n{"stage": "fit", "st')
    assert list(run.metrics["loss"])[-1] == 0.125, "the row that is being written is left out"


def test_metrics_that_are_too_many_for_a_table_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_run(folder)
    lines(made.metrics, [{"stage": "fit", "step": step, "epoch": 0, f"m{step}": 1.0} for step in range(100)])
    assert len(samestep.run("demo-1").metrics) == 100
    monkeypatch.setattr(metrics_table, "MOST_CELLS", 10_000)
    with pytest.raises(UserError, match="too many"):
        _ = samestep.run("demo-1").metrics


def test_samples_are_rows(folder: Path) -> None:
    made = make_run(folder)
    where = {"stage": "fit", "step": 10, "name": "texts"}
    lines(made.samples, [{**where, "kind": "text", "text": "a"}, {**where, "kind": "film"}, {"kind": "text"}, [1]])  # type: ignore[list-item]
    run = samestep.run("demo-1")
    assert run.samples == [{**where, "kind": "text", "text": "a"}]


@pytest.mark.usefixtures("bare")
def test_plots_without_matplotlib_are_drawings_and_text(folder: Path) -> None:
    make_run(folder)
    run = samestep.run("demo-1")
    plot = run.plot("val/*", "loss")
    assert isinstance(plot, CurvePlot)
    first, second = drawings(plot._repr_html_())
    (points,) = re.findall(r'points="([^"]*)"', first)
    places = [tuple(map(float, point.split(","))) for point in points.split()]
    assert len(places) == 4, "a point for each validation"
    assert [x for x, _ in places] == pytest.approx([70, 150, 230, 310]), "steps 10 to 40 from the left to the right"
    assert [y for _, y in places] == sorted(y for _, y in places), "it falls"
    assert ">val/nll<" in first and ">loss<" in second
    assert repr(plot).splitlines()[0] == "val/nll" and repr(plot).count("|") == 16
    assert repr(run.plot()) == repr(run.plot("loss", "val/nll")), "by default losses and validations"


@pytest.mark.usefixtures("bare")
def test_curves_of_several_stages_are_named_by_them(folder: Path) -> None:
    made = make_run(folder)
    lines(made.metrics, [{"stage": stage, "step": 1, "loss": 1.0} for stage in ("one", "two")])
    run = samestep.run("demo-1")
    assert [line for line in repr(run.plot("loss")).splitlines() if "loss" in line] == [
        "loss (stage one)",
        "loss (stage two)",
    ]
    assert repr(run.plot("loss", stage="two")).startswith("loss\n")


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("values", "lines_drawn"),
    [([1.0, 2.0, None, 3.0, 4.0], 2), ([None, None], 0), ([1e308, -1e308, 1e308], 1), ([5.0, 5.0], 1), ([5.0], 0)],
)
def test_any_values_can_be_drawn(folder: Path, values: list[float | None], lines_drawn: int) -> None:
    made = make_run(folder)
    lines(made.metrics, [{"stage": "fit", "step": step, "loss": value} for step, value in enumerate(values)])
    plot = samestep.run("demo-1").plot("loss")
    (drawn,) = drawings(plot._repr_html_())
    assert drawn.count("<polyline") == lines_drawn
    assert "nan" not in drawn.split("</style>")[1]
    assert repr(plot).startswith("loss\n")


def test_plots_with_matplotlib(folder: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    made = make_run(folder)
    with open(made.metrics, "a") as file:
        file.write(json.dumps({"stage": "fit", "step": 41, "epoch": 0, "$\\frac$": 1.0}) + "\n")
    run = samestep.run("demo-1")
    axes = run.plot("loss", "val/nll", "$\\frac$")
    assert [line.get_label() for line in axes.get_lines()] == ["loss", "val/nll", "\\$\\frac\\$"]
    assert axes.get_lines()[1].get_ydata().tolist() == pytest.approx([0.2, 0.1, 2 / 30, 0.05])
    assert len(pyplot.get_fignums()) == 1, "a notebook shows each open figure"
    axes.figure.canvas.draw()
    pyplot.close("all")


@pytest.mark.parametrize(
    ("names", "stage", "fix"),
    [
        (["los"], None, "did you mean 'loss'"),
        (["val/x*"], None, "it has loss, lr, rows/s, val/nll"),
        (["loss"], "fitt", "did you mean 'fit'"),
    ],
)
def test_unknown_names_are_refused(folder: Path, names: list[str], stage: str | None, fix: str) -> None:
    make_run(folder)
    with pytest.raises(UserError) as refused:
        samestep.run("demo-1").plot(*names, stage=stage)
    assert fix in str(refused.value)


def test_a_run_without_metrics(folder: Path) -> None:
    made = make_run(folder)
    made.metrics.unlink()
    run = samestep.run("demo-1")
    assert len(run.metrics) == 0
    assert drawings(run._repr_html_()) == []
    with pytest.raises(UserError, match="no metrics yet"):
        run.plot()


def test_a_run_that_was_removed_is_no_error(folder: Path) -> None:
    made = make_run(folder)
    found = samestep.runs()
    shutil.rmtree(made.path)
    assert found[0].state == "not begun" and len(found[0].metrics) == 0
    assert "demo-1" in repr(found) and "demo-1" in found._repr_html_() and "demo-1" in found[0]._repr_html_()


def test_the_page_of_a_run(folder: Path) -> None:
    make_run(folder)
    run = samestep.run("demo-1")
    assert run.report() == run.path / "report.html"
    assert run.report("here.html").read_text() == (run.path / "report.html").read_text()


def test_a_notebook_shows_a_run_by_itself(folder: Path) -> None:
    make_run(folder)
    html = samestep.run("demo-1")._repr_html_()
    parts = PageParts(html)
    assert {"demo-1", "mdlm", "done", "40/40"} <= set(parts.texts["td"])
    assert [re.findall(">(loss|val/nll)<", each) for each in drawings(html)] == [["loss"], ["val/nll"]]
    assert "script" not in html and "http" not in html


@pytest.mark.usefixtures("bare")
def test_texts_of_a_run_are_texts(folder: Path) -> None:
    made = make_run(folder, note=HOSTILE)
    made.config.write_text(json.dumps({"recipe": HOSTILE.replace("/", "|"), "config": {HOSTILE: HOSTILE}}))
    made.status.write_text(json.dumps({"status": HOSTILE, "stage": HOSTILE}))
    row = {"stage": HOSTILE, "step": 1, "epoch": 0, HOSTILE: 1.0, f"{HOSTILE}_loss": 2.0}
    lines(made.metrics, [row, {"stage": "b", "step": 1, "loss": 1.0, HOSTILE: 1.0}])
    lines(made.events, [{"time": 1.0, "kind": HOSTILE, "host": HOSTILE, "best": HOSTILE}])
    (folder / "demo-1").rename(folder / "<script>\x1b[2J\n")
    found = samestep.runs("runs")
    run = found[0]
    shown = [run, found, run.metrics, run.plot("*"), found.table]
    for html in (each._repr_html_() for each in shown):
        assert not {"script", "svg"} & set(PageParts(html).names), "every text is escaped"
        for drawn in drawings(html):
            assert not {"script", "img"} & {
                part.tag.rpartition("}")[2] for part in ElementTree.fromstring(drawn).iter()
            }
    for each in shown:
        assert "\x1b" not in repr(each), "a terminal would obey it"
    assert "\n" not in repr(run)


@pytest.mark.parametrize("name", ["config", "status", "events", "metrics", "samples"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]\n{}\n", b"\xff\x00\xfe\n", b'{"step": "x", "stage": 3}\n[[[[\n{}\n']
)
def test_damaged_files_are_named_and_the_rest_is_shown(folder: Path, name: str, content: bytes) -> None:
    made = make_run(folder)
    path: Path = getattr(made, name)
    path.write_bytes(content)
    run = samestep.run("demo-1")
    assert (run.recipe, run.settings == {}) == (("", True) if name == "config" else ("mdlm", False))
    assert (run.best is None) == (name == "events")
    assert run.step == (None if name == "metrics" else 40)
    assert (run.state == "done") == (name != "status")
    assert run.samples == []
    assert (len(run.metrics) == 20) == (name != "metrics")
    assert "demo-1" in repr(run) and "demo-1" in run._repr_html_()
    assert len(samestep.runs()) == 1
    if content.startswith(b"\xff") and name != "samples":
        assert path.name in run.damage and path.name in run._repr_html_()


def test_runs_are_found_by_number_by_name_and_in_order(folder: Path) -> None:
    for name, shift in (("a-1", 3.0), ("b-1", 1.0), ("c-2", 2.0)):
        make_run(folder, name, shift=shift)
    found = samestep.runs(sort="best")
    assert [run.name for run in found] == ["b-1", "c-2", "a-1"] and len(found) == 3
    assert found[0].name == found["b-1"].name == "b-1"
    assert [run.name for run in found[1:]] == ["c-2", "a-1"]
    assert [run.name for run in samestep.runs(filter=["best<3", "-1"])] == ["b-1"]
    assert len(samestep.runs(filter="state=failed")) == 0
    assert repr(found).splitlines()[1].startswith("b-1  mdlm") and repr(found).endswith("3 runs")
    assert {"a-1", "b-1", "c-2"} <= set(PageParts(found._repr_html_()).texts["td"])
    with pytest.raises(UserError, match="did you mean 'a-1'"):
        found["a-l"]
    with pytest.raises(UserError, match="did you mean 'best'"):
        samestep.runs(sort="bes")
    with pytest.raises(UserError, match="cannot be listed"):
        samestep.runs("nowhere")


@pytest.mark.usefixtures("bare")
def test_the_table_of_runs(folder: Path) -> None:
    make_run(folder, "a-1")
    make_run(folder, "b-1").events.unlink()
    found = samestep.runs(sort="name").table
    assert found["name"].tolist() == ["a-1", "b-1"] and found["step"].tolist() == [40, 40]
    assert found["best"].tolist() == pytest.approx([0.05, np.nan], nan_ok=True)
    assert {row["state"] for row in found} == {"done"}
    assert len(samestep.runs(filter="state=failed").table) == 0


def test_the_table_of_runs_with_pandas(folder: Path) -> None:
    pandas = pytest.importorskip("pandas")
    make_run(folder, "a-1")
    found = samestep.runs().table
    assert isinstance(found, pandas.DataFrame)
    assert found.set_index("name").loc["a-1", "best"] == 0.05


@pytest.mark.usefixtures("bare")
def test_the_code_of_the_page(folder: Path) -> None:
    for name in ("gan-tiny-1", "gan-tiny-2"):
        make_run(folder, name)
    section = DOCS.read_text().partition("## In a notebook")[2].partition("\n## ")[0]
    codes = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert codes
    names: dict[str, Any] = {}
    for code in codes:
        exec(compile(code, DOCS.name, "exec"), names)
    assert names["run"].name == "gan-tiny-1"
    assert Path("gan-tiny-1.html").is_file()
