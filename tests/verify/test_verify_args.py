"""The command line of verify, and what it prints."""

import io
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from rich.console import Console

from samestep.cli import verify
from samestep.cli.args import RecipeArgs
from samestep.cli.main import main
from samestep.core.errors import UserError
from samestep.train.api.recipe import Recipe
from samestep.train.record.config import Config
from samestep.verify.report import ProofTable, table
from samestep.verify.tolerance import CheckResult, ProofStatus

CHECKS = [
    CheckResult("same samples at 1, 2 and 3 ranks", ProofStatus.OK, "8 steps"),
    CheckResult(
        "same gradients at 1, 2 and 3 ranks", ProofStatus.FAILED, "row (0, 17) differs because of [something] " * 5
    ),
    CheckResult("rounding floor", ProofStatus.UNVERIFIABLE, "losses 8.9e-05"),
    CheckResult("the rest", ProofStatus.NOT_RUN, "stopped at the first failure"),
]


def test_the_table_fits_100_columns() -> None:
    screen = io.StringIO()
    Console(file=screen, width=100, force_terminal=True, color_system=None).print(
        table(CHECKS, "samestep verify x").drawn()
    )
    lines = screen.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 100
    text = "\n".join(lines)
    assert "[something]" in text
    assert [part in text for part in ("ok", "FAILED", "UNVERIFIABLE", "not run", "8 steps")] == [True] * 5


def test_without_a_terminal_a_check_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with ProofTable("title") as board:
        board.show_progress("unseen")
        for check in CHECKS:
            board.add(check)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "title"
    assert lines[1] == "ok      same samples at 1, 2 and 3 ranks: 8 steps"
    assert lines[2].startswith("FAILED  same gradients")
    assert lines[3] == "UNVERIFIABLE rounding floor: losses 8.9e-05"
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("checks", "text", "code"),
    [
        (CHECKS[:1] + CHECKS[3:], "all 1 checks hold", 0),
        (CHECKS[:2] + CHECKS[3:], "1 of 2 checks failed", 1),
        (CHECKS[:1] + CHECKS[2:], "1 of 2 checks are unverifiable, so this is not a proof", 1),
        (CHECKS, "1 of 3 checks failed, 1 of 3 checks are unverifiable, so this is not a proof", 1),
    ],
)
def test_the_summary_counts_what_does_not_hold(
    checks: list[CheckResult], text: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify.summary(checks) == code
    assert capsys.readouterr().out == f"{text}\n"


def test_a_recipe_without_the_preset_is_asked_to_declare_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = types.ModuleType("bare_recipe")
    module.recipe = Recipe(config=Config, stages=lambda config: [])  # type: ignore[attr-defined]
    module.__spec__ = ModuleSpec("bare_recipe", None)
    monkeypatch.setitem(sys.modules, "bare_recipe", module)
    assert main(["verify", "bare_recipe"]) == 2
    assert "has no preset 'verify'; declare a small one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "presets"), [([], ["verify", "verify-sft"]), (["--preset", "verify-sft"], ["verify-sft"])]
)
def test_every_preset_for_proofs_is_proved_unless_one_is_named(args: list[str], presets: list[str]) -> None:
    asked = RecipeArgs.parse(["mdlm", *args], "verify")
    assert list(verify.verify_configs(asked, asked.recipe())) == presets


@pytest.mark.parametrize("args", [["--kill-seed", "x"], ["--timeout", "0"], ["--keep", "."]])
def test_bad_options_are_refused(args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "something").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=args[0]):
        verify.run(["planted.sound", *args])
