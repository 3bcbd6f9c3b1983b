"""That something is compiled is said before it takes long, and how long it took; nothing where nothing is compiled."""

from pathlib import Path
from typing import Any

import pytest

from samestep.cli.main import main
from samestep.parallel.compiling import LossCompiler
from samestep.train.learner.preparation import Preparation
from samestep.train.logging.compile_notice import CompileNotice
from samestep.train.logging.console import Screen

RECIPE = str(Path(__file__).parent / "ending.py")


@pytest.mark.parametrize("compiles", [True, False])
def test_what_is_compiled_is_said_once_before_the_first_step(
    compiles: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LossCompiler.__init__, "__defaults__", ("eager",))
    printed_before: list[str] = []
    attempt = Preparation.prepare

    def prepare(self: Preparation, *args: Any, **options: Any) -> None:
        attempt(self, *args, **options)
        printed_before.append(capsys.readouterr().out)

    monkeypatch.setattr(Preparation, "prepare", prepare)
    assert main(["train", RECIPE, "--preset", "verify", "log.every=1", f"compile={str(compiles).lower()}"]) == 0
    rest = capsys.readouterr().out
    output = "".join([*printed_before, rest])
    assert output.count("compiling the model: the first steps take longer") == compiles
    assert output.count("compiling included") == compiles
    if compiles:
        assert "compiling the model" in printed_before[0], "before the update"
        assert "step 1 took" in printed_before[1], "before the next one"


def test_what_is_compiled_after_the_first_steps_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    notice = CompileNotice(Screen(visible=True))
    notice.begin_steps()
    notice.end_step(1, is_last=False)
    notice.before_compiling("the optimizer")
    notice.before_compiling("the model")
    notice.end_step(2, is_last=False)
    notice.end_step(3, is_last=True)
    other = CompileNotice(Screen(visible=True))
    other.begin_steps()
    other.end_step(1, is_last=True)
    other.before_compiling("the model")
    first, second = capsys.readouterr().out.splitlines()
    assert first == "compiling the optimizer: the first steps take longer"
    assert second.startswith("step 2 took ") and second.endswith("s, compiling included")
