"""Every preset of every recipe has settings that exist and go together, and stages."""

import pytest

from samestep.core.config import build
from samestep.train.api.recipe_registry import find_recipe

PRESETS = [
    (recipe, preset) for recipe in ("mdlm", "gan", "dpo", "distill", "lens") for preset in find_recipe(recipe).presets
]


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_a_preset_can_be_composed(name: str, preset: str) -> None:
    recipe = find_recipe(name)
    config = build(recipe.config, recipe.presets[preset])
    stages = [stage.name for stage in recipe.stages(config)]
    assert stages and len(set(stages)) == len(stages)
    assert name != "lens" or stages[-1] == "eval"
