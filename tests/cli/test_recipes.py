"""`samestep recipes`, and a recipe's name where a verb belongs."""

import pytest

from samestep.cli.main import main
from samestep.cli.recipes import recipe_lines
from samestep.train.api.recipe_registry import known_recipes


def test_every_recipe_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(known_recipes())]] == known_recipes() == list(recipe_lines())
    assert all(20 < len(meaning) < 100 and "`" not in meaning for meaning in recipe_lines().values())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["mdlm"], "mdlm is a recipe; to train it, write: samestep train mdlm"),
        (["dpo", "--lr", "1"], "dpo is a recipe; to train it, write: samestep train dpo"),
        (["recipe"], "there is no verb 'recipe' (did you mean 'recipes'?)"),
        (["recipes", "mdlm"], "samestep recipes takes nothing, not 'mdlm'; samestep config RECIPE describes one"),
    ],
)
def test_what_was_meant_instead(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert sentence in capsys.readouterr().err
