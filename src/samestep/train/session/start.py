"""What a rank was started with, and the check that all ranks were started alike.

What a rank executes never comes from another rank: each takes its recipe from its own command line, or from a run
directory that it reads itself. Through the store go hashes, which are compared, and settings, which are data.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.train.api.recipe import Recipe
from samestep.train.api.recipe_registry import find_module
from samestep.world.world import World


@dataclass(frozen=True)
class StartArguments:
    """What a rank was started with."""

    name: str
    """The recipe's name, import path or file."""
    recipe: Recipe
    settings: Json
    """The settings as they were given, which must be the same on all ranks."""
    config: Callable[[], "Configured"]
    """Makes the configuration. Rank 0 calls it for all: it may read files that only rank 0 sees."""
    command: Sequence[str] = ()
    """What followed `samestep train`, without the options of a launcher; empty where another program made it."""


class Configured(NamedTuple):
    """A configuration that a user asked for."""

    config: Any
    notes: Sequence[str] = ()
    """What the user should know of the settings that were given."""


def require_same_start(world: World, recipe: str, settings: Json) -> None:
    """Refuse a rank that was started with another recipe, or with other settings, than rank 0."""
    file = getattr(find_module(recipe), "__file__", None)
    own = {
        "another recipe": _hash(Path(recipe).name.encode()),  # a file may be in another folder on another machine
        "another version of the recipe's file": _hash(Path(file).read_bytes() if file else b""),
        "other settings": _hash(json.dumps(settings, default=str).encode()),
    }
    first = world.share_through_store("started with", own)
    difference = next((what for what in own if first.get(what) != own[what]), None)
    if difference is not None:
        raise UserError(
            f"this rank was started with {difference} than rank 0; start all ranks with the same command and code"
        )


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
