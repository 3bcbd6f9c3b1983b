"""The page of runs: its numbers are those that were logged, its texts stay texts, and no secret is in it."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from page_parts import PageParts
from report.made_runs import lines, make_run
from samestep.cli.report import run as report_command
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.report.html_report import report_page
from samestep.report.run_report import read_report

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028javascript:alert(1)"


def page_of(*runs: RunDir) -> str:
    return report_page([read_report(run, "it was killed") for run in runs])


def data_of(page: str) -> dict[str, Any]:
    """What the script of the page finds."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])  # type: ignore[no-any-return]


def line_of(data: dict[str, Any], name: str, run: int = 0) -> tuple[list[int], list[float]]:
    (chart,) = (chart for chart in data["charts"] if chart["name"] == name)
    (line,) = (line for line in chart["lines"] if line["run"] == run)
    steps, values = (np.frombuffer(base64.b64decode(line[axis]), kind) for axis, kind in (("x", "<u4"), ("y", "<f4")))
    return steps.tolist(), values.tolist()


def test_curves_events_and_times_are_those_of_the_run(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path, ranks=2))
    data = data_of(page)
    steps, values = line_of(data, "val/nll")
    assert steps == [10, 20, 30, 40]
    assert values == pytest.approx([0.2, 0.1, 2.0 / 30, 0.05], rel=1e-6)
    assert [(mark["step"], mark["kind"]) for mark in data["marks"]] == [(20, "save")], "the launch was before step 1"
    clock = data["clocks"]["0"]["fit"]
    assert np.frombuffer(base64.b64decode(clock["y"]), "<f4")[-1] == pytest.approx(40 * 0.5)
    texts = PageParts(page).texts
    assert "40 of 40 (stage fit)" in texts["td"]
    assert "val/nll 0.05 at step 40 (stage fit)" in texts["td"]
    assert "samestep train mdlm --preset tiny name=demo-1 --nproc 2" in texts["td"]
    assert any("waiting for other ranks 20%" in text for text in texts["span"])


def test_skipped_steps_are_marked(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    rows = [{"stage": "fit", "step": step, "epoch": 0, "skipped": float(step == 12)} for step in range(2, 41, 2)]
    lines(run.metrics, rows)
    marks = [(mark["step"], mark["kind"]) for mark in data_of(page_of(run))["marks"]]
    assert marks == [(12, "trouble"), (20, "save")]


def test_several_runs_share_their_charts_and_show_what_differs(tmp_path: Path) -> None:
    runs = make_run(tmp_path, "a"), make_run(tmp_path, "b", shift=0.5, learning_rate=0.02)
    page = page_of(*runs)
    data = data_of(page)
    assert data["runs"] == ["a", "b"]
    assert line_of(data, "val/nll", run=1)[1] == pytest.approx([0.7, 0.6, 0.5 + 2.0 / 30, 0.55], rel=1e-6)
    cells = PageParts(page).texts["td"]
    at = cells.index("learning_rate")
    assert cells[at : at + 3] == ["learning_rate", "0.01", "0.02"]


def test_texts_of_a_run_stay_texts(tmp_path: Path) -> None:
    run = make_run(tmp_path, note=HOSTILE, **{HOSTILE: 1})
    rows = [{"stage": HOSTILE, "step": 1, "epoch": 0, HOSTILE: 0.5}]
    lines(run.metrics, rows)
    lines(run.events, [{"time": 1.0, "kind": HOSTILE}, {"time": 2.0, "kind": "ended", "text": HOSTILE}])
    page = page_of(run)
    parts = PageParts(page)
    assert "img" not in parts.names
    assert parts.names.count("script") == 2, "the data, and the page's own"
    assert not [name for _, name in parts.attributes if name.startswith("on") or name in ("style", "src", "href")]
    assert data_of(page)["charts"][0]["name"] == HOSTILE
    (policy,) = (content for content in parts.attributes["meta", "content"] if "default-src" in content)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_secrets_and_home_folders_are_not_in_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "very-private-words")
    token = "hf_" + "a1B2" * 8
    run = make_run(tmp_path, judge_key="k-12345678", data={"path": "/home/anna/texts", "url": token})
    command = ["gan", "data.path=/home/anna/texts", f"hub_token={token}", "note=very-private-words", "seed=3"]
    lines(run.events, [{"time": 1.0, "kind": "launch", "world": 1, "device": "cpu", "command": command}])
    page = page_of(run)
    for secret in (token, "k-12345678", "very-private-words", "/home/anna"):
        assert secret not in page
    assert "~/texts" in page
    assert "seed=3" in page


def test_what_is_missing_or_damaged_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.rank_speeds.unlink()
    run.status.write_text("{")
    with open(run.metrics, "a") as file:
        file.write('{"stage": "fit", "st\n{"stage": "fit", "step": 42, "epoch": 1, "loss": 0.25}\n')
    page = page_of(run)
    assert line_of(data_of(page), "loss")[1][-1] == 0.25
    said = PageParts(page).texts["p"]
    assert any("status.json" in text for text in said)
    assert any("metrics.jsonl: lines in it are not JSON" in text for text in said)
    empty = RunDir(tmp_path / "empty")
    empty.path.mkdir()
    empty.config.write_text("{}")
    assert "no metrics were logged yet" in page_of(empty)


def test_a_long_run_stays_a_small_page_and_keeps_its_peak(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    names = [f"m{number}" for number in range(40)]
    rows = ({"stage": "fit", "step": step, "epoch": 0, **dict.fromkeys(names, step % 7)} for step in range(1, 6001))
    with open(run.metrics, "w") as file:
        for row in rows:
            file.write(json.dumps({**row, "m7": 99.0} if row["step"] == 4321 else row) + "\n")
    page = page_of(run)
    assert len(page) < 2_000_000
    steps, values = line_of(data_of(page), "m7")
    assert len(steps) <= 2000
    assert steps[values.index(99.0)] == 4321


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs", "a")
    make_run(tmp_path / "runs", "b")
    assert report_command(["a"]) == 0
    assert (tmp_path / "runs" / "a" / "report.html").exists()
    assert report_command(["a", "b", "--out", "both.html"]) == 0
    assert data_of((tmp_path / "both.html").read_text())["runs"] == ["a", "b"]
    assert "both.html" in capsys.readouterr().out
    for wrong in (["c"], ["a", "--to=x"], ["--out", "x.html"]):
        with pytest.raises(UserError):
            report_command(wrong)
