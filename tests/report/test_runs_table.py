"""Lists of runs: what stands in them, sorted and filtered."""

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from report.made_runs import make_run
from samestep.cli.runs import run as runs_command
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.report.removal import referring, remove_run
from samestep.report.run_summary import find_runs, read_summary
from samestep.report.runs_table import chosen, facts


def test_the_facts_of_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    found = facts(read_summary(run))
    assert {name: found[name] for name in ("name", "recipe", "state", "step", "steps", "host", "stage")} == {
        "name": "demo-1",
        "recipe": "mdlm",
        "state": "done",
        "step": 40,
        "steps": 40,
        "host": "node1",
        "stage": "fit",
    }
    assert (found["metric"], found["best"], found["best_step"]) == ("val/nll", 0.05, 40)
    assert found["size"] == sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())


def test_a_run_that_only_says_that_it_is_running_was_killed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.status.write_text(json.dumps({"status": "running", "stage": "fit", "step": 12, "steps": 40}))
    assert read_summary(run).state == "killed"


LATER = '{"later": {"x": 1}}'
"""A record of another version, which has other fields."""


@pytest.mark.parametrize("content", ["", "{", "[]", '{"recipe": 3, "config": [], "versions": null}', LATER])
def test_damaged_files_are_named_and_the_rest_is_shown(tmp_path: Path, content: str) -> None:
    run = make_run(tmp_path)
    run.config.write_text(content)
    found = facts(read_summary(run))
    assert found["step"] == 40
    assert found["recipe"] == ""
    assert found["best"] == 0.05
    assert "config.json" in found["damage"] or content == LATER


def test_sorted_and_filtered(tmp_path: Path) -> None:
    for name, shift in (("a-1", 3.0), ("b-1", 1.0), ("c-2", 2.0)):
        make_run(tmp_path, name, shift=shift)
    bare = RunDir(tmp_path / "d-1")
    bare.path.mkdir()
    bare.config.write_text("{}")
    bare.events.write_text("")
    found = [facts(read_summary(run)) for run in find_runs(tmp_path)]

    def names(*filters: str, order: str = "name") -> list[str]:
        return [each["name"] for each in chosen(found, filters, order)]

    assert names() == ["a-1", "b-1", "c-2", "d-1"]
    assert names(order="best") == ["b-1", "c-2", "a-1", "d-1"], "a run without a value comes last"
    assert names(order="-best") == ["a-1", "c-2", "b-1", "d-1"]
    assert names("best<3", "state=done") == ["b-1", "c-2"]
    assert names("MDLM", "name!=a-1") == ["b-1", "c-2"]
    assert names("-2") == ["c-2"]


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (["--sort", "nam"], "did you mean 'name'"),
        (["--filter", "colour=red"], "choose one of"),
        (["--filter", "best<good"], "compares with a number"),
        (["--filter"], "needs a value"),
        (["--long"], "there is no option --long"),
        (["nowhere"], "cannot be listed"),
        (["compare", "demo-1"], "name two runs"),
        (["remove"], "name the runs"),
        (["remove", "demo-1"], "--yes"),
        (["remove", "demo-9", "--yes"], "demo-9"),
    ],
)
def test_wrong_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], fix: str) -> None:
    make_run(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", StringIO())
    with pytest.raises(UserError) as refused:
        runs_command(arguments)
    assert fix in str(refused.value)


@pytest.mark.parametrize("text", ["demo-1", "runs/demo-1", "demo-1:generator", "demo-1/checkpoints/fit/step_00000020"])
def test_a_run_that_another_refers_to_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    first = make_run(tmp_path / "runs")
    student = make_run(tmp_path / "runs", "demo-2", teacher={"model": text})
    make_run(tmp_path / "runs", "demo-10", note="demo-100")
    others = find_runs(tmp_path / "runs")
    assert [run.path.name for run in referring(first, others)] == ["demo-2"]
    with pytest.raises(UserError, match="demo-2 refers to it"):
        remove_run(first, others)
    assert first.config.exists()
    assert runs_command(["remove", "demo-2", "demo-1", "--yes"]) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["demo-10"]
    assert not student.path.exists()


def test_a_run_that_is_running_is_not_removed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    code = (
        "import sys, pathlib; from samestep.core.rundir import RunDir\n"
        f"lock = RunDir(pathlib.Path({str(run.path)!r})).lock(); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        run.status.write_text(json.dumps({"status": "running"}))
        assert read_summary(run).state == "running"
        with pytest.raises(UserError, match="in use"):
            remove_run(run, [])
        holder.communicate()
    assert run.config.exists()


def test_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs", "a")
    make_run(tmp_path / "runs", "b", shift=0.5, learning_rate=0.02)
    assert runs_command(["compare", "a", "b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"] == {"learning_rate": ["0.01", "0.02"]}
    assert found["metrics"]["fit/val/nll"] == [0.05, 0.55]
    assert "loss differs first at step 2 of stage fit" in found["differences"][0]
    runs_command(["compare", "a", "a", "--json"])
    assert "the same" in json.loads(capsys.readouterr().out)["differences"][-1]
