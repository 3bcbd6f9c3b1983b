"""Every recipe is the same run at any world size and after a kill."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from samestep.cli.verify import run, verify_presets
from samestep.train.api.recipe_registry import find_recipe, known_recipes
from samestep.verify.runner import PRESET

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = str(EXAMPLES / "sine.py")
PROVED = [EXAMPLE, "planted.teacher_dump"]
LONG = [
    *(str(EXAMPLES / "image_classifier.py"), "planted.global_batch_norm"),
    *(str(EXAMPLES / f"{name}.py") for name in ("reinforce", "ddpm", "clip")),
    *("planted.sound", "planted.rollout"),
    *("planted.declared_unused", "planted.keyed_dropout", "planted.adversaries", "planted.improving"),
    *("planted.optimizers", "planted.two_networks", "planted.text_rollout", "planted.gan_generative"),
]


def presets() -> Iterator[Any]:
    """Shipped recipes with all presets that are verified, and recipes of the tests."""
    for recipe in known_recipes():
        for preset in verify_presets(find_recipe(recipe)):
            yield pytest.param(recipe, preset, marks=[] if preset == PRESET else pytest.mark.long)
    yield from ((recipe, PRESET) for recipe in PROVED)
    yield from (pytest.param(recipe, PRESET, marks=pytest.mark.long) for recipe in LONG)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("recipe", "preset"), presets())
def test_recipe(recipe: str, preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run([recipe, f"--preset={preset}", "--kill-seed", "7", "--keep", str(tmp_path / "runs")])
    output = capsys.readouterr().out
    assert code == 0, output
    assert "FAILED" not in output
    for done in (
        "gradients at 1, 2, 3 ranks",
        "kill -9, resume at 2",
        "kill -9, resume at 3",
        "killed at 3, resumed at 1 rank",
    ):
        assert f"ok      {done}" in output
    # Rewards that hardly differ are divided by their deviation, so more than the usual 1e-7 may pass.
    floor = r"ok      rounding floor: losses .*, gradients .* in another order and scale(; up to .*e-0[67] passes)?\n"
    assert re.search(floor, output), output


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "recipe", ["float_logits", *(pytest.param(name, marks=pytest.mark.long) for name in ("float32_norm", "hf_llama"))]
)
def test_arithmetic_in_float32_passes_by_its_measured_floor(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if recipe == "hf_llama":
        pytest.importorskip("transformers")
    code = run([f"planted.{recipe}", "--kill-seed", "7", "--keep", str(tmp_path / "runs")])
    output = capsys.readouterr().out
    assert code == 0, output
    assert re.search(r"ok      rounding floor: losses .*, gradients \d\.\de-0\d, .* passes\n", output), output


def test_a_users_mistake_ends_with_its_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from samestep.cli.main import main

    assert main(["verify", EXAMPLE, "learning_rate=-1", "--keep", str(tmp_path / "runs")]) == 2
    assert capsys.readouterr().err == "samestep: learning_rate must be a number of at least 0, not '-1'.\n"


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ("planted.metric_trained", "returned several terms ('error', 'accuracy'); say which of them are trained"),
        ("planted.miscounted", "count gives 'eror' a weight, but the loss has no such term (it has 'error')"),
    ],
)
def test_what_the_runtime_refuses_ends_with_its_sentence(
    recipe: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from samestep.cli.main import main

    assert main(["verify", recipe, "--keep", str(tmp_path / "runs")]) == 2
    assert sentence in capsys.readouterr().err
