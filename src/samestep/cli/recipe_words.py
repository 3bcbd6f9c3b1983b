"""What the words after a verb mean: the verb's own options, the recipe, and settings of the recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.core.compose import amend, compose
from samestep.core.errors import UserError
from samestep.core.overrides import take
from samestep.train.finding import find_recipe, known_recipes
from samestep.train.opening import with_run_path
from samestep.train.recipe import Recipe

COMMON = {"log_level": "log.level", "quiet": "log.quiet"}
"""Flags that every recipe understands beside its own."""
OPTIONS = ("config", "config-path", "config-name")


@dataclass(frozen=True)
class RecipeWords:
    """A recipe's name and what was said about its settings."""

    name: str
    options: dict[str, str]
    settings: list[str]

    @classmethod
    def read(cls, words: Sequence[str], verb: str, extra: Sequence[str] = ()) -> "RecipeWords":
        """Take a command line apart; the recipe is its first word."""
        options, rest = take(words, [*OPTIONS, *extra])
        if not rest or rest[0].startswith("-") or "=" in rest[0]:
            raise UserError(f"samestep {verb} needs a recipe first, one of: {', '.join(known_recipes())}")
        return cls(rest[0], options, rest[1:])

    def recipe(self) -> Recipe:
        """The recipe that was named."""
        return find_recipe(self.name)

    def config(self, recipe: Recipe, preset: str | None = None) -> Any:
        """Its configuration: default < preset < file < command line; then what follows from data or another model."""
        paths = {name: Path(self.options[name]) for name in ("config", "config-path") if name in self.options}
        config = compose(
            recipe.config,
            presets=recipe.presets,
            aliases={**COMMON, **recipe.aliases},
            preset=preset,
            config=paths.get("config"),
            config_path=paths.get("config-path"),
            config_name=self.options.get("config-name"),
            words=self.settings,
        )
        config = with_run_path(config)
        return recipe.settle(config) if recipe.settle else config


def amended(recipe: Recipe, data: Mapping[str, Any], words: Sequence[str]) -> Any:
    """A run's own configuration with what the words change."""
    return amend(recipe.config, data, aliases={**COMMON, **recipe.aliases}, words=words)
