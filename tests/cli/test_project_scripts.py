"""Which config file a script of a project takes."""

from pathlib import Path

import pytest

from samestep.cli import project_scripts
from samestep.cli.project_scripts import train_with, with_config_file
from samestep.core.errors import UserError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose script lies in scripts/, and whose files lie in conf/; it is the working directory."""
    for folder in ("scripts", "conf", "elsewhere"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "config"),
    [
        ("--config-path=../conf --config-name=small", "--config-path={}/conf --config-name=small"),
        ("--config-path ../conf --config-name small", "--config-path={}/conf --config-name=small"),
        ("--config_path=../conf", "--config-path={}/conf"),
        ("--config-path=. --config-name=small", "--config-path={}/scripts --config-name=small"),
        ("--config-name=small", "--config-path={}/scripts --config-name=small"),
        ("--config-path={}/conf --config-name=small", "--config-path={}/conf --config-name=small"),
        ("--config=conf/small.yaml", "--config=conf/small.yaml"),
        ("", "--config={}/settings.yaml"),
    ],
)
@pytest.mark.parametrize("rest", [[], ["--lr", "1", "+epochs=2"]])
def test_the_rule_of_hydra(typed: str, config: str, rest: list[str], project: Path) -> None:
    args = [*typed.format(project).split(), *rest]
    found = with_config_file(args, project / "scripts", project / "settings.yaml")
    assert found == [*config.format(project).split(), *rest]


def test_a_folder_below_the_working_directory_is_not_meant(project: Path) -> None:
    with pytest.raises(UserError, match="relative to the script's folder") as caught:
        with_config_file(["--config-path=conf"], project / "scripts", project / "settings.yaml")
    assert str(caught.value).endswith(f"which has no conf; write --config-path={project}/conf")


def test_the_folder_is_that_of_the_script_that_runs(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(project_scripts, "main", lambda args: called.append(args) or 0)
    monkeypatch.setattr("sys.argv", ["scripts/train.py", "--config-path=../conf", "seed=1"])
    assert train_with("mdlm", project / "settings.yaml") == 0
    assert called == [["train", "mdlm", f"--config-path={project}/conf", "seed=1"]]
    monkeypatch.setattr("sys.argv", ["scripts/train.py", "--resume", "runs/a", "max_time=1h"])
    assert train_with("mdlm", project / "settings.yaml") == 0
    assert called[1] == ["train", "--resume", "runs/a", "max_time=1h", "--recipe=mdlm"]
    for mistake in ("--config-path=conf", "--config-name"):
        monkeypatch.setattr("sys.argv", ["scripts/train.py", mistake])
        assert train_with("mdlm", project / "settings.yaml") == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
