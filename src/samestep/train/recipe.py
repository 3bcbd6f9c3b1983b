"""A recipe is a record of functions, and its stages are rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep.core.config import Alias
from samestep.train.bench import Bench
from samestep.train.config import Config
from samestep.train.task import Tick


def no_validation(task: Any, tick: Tick) -> Mapping[str, float]:
    """Nothing to validate."""
    return {}


def no_finish(task: Any, bench: Bench) -> None:
    """Nothing to hand over."""


@dataclass(frozen=True)
class Stage:
    """One phase of a recipe. Stages run in order, each resumes alone, and they hand over through artifacts on disk."""

    name: str
    build: Callable[[Bench], Any]
    """Makes the stage's task out of what the bench offers."""
    validate: Callable[[Any, Tick], Mapping[str, float]] = no_validation
    """Agreed figures of a task, equal on all ranks."""
    best: tuple[str, str] | None = None
    """The figure that decides which checkpoint is best, and `min` or `max`."""
    finish: Callable[[Any, Bench], None] = no_finish
    """Runs after the last step on every rank; leaves artifacts for later stages."""
    unit: str = "rows"
    """The counted weight that speed is shown in, such as `tokens`."""
    start: str | None = None
    """The earlier stage with whose weights this stage's learners begin: `align` or `align:best`; None: afresh, or with
    `init_from` if no earlier stage took that."""


@dataclass(frozen=True)
class Recipe:
    """A complete training method. `config` inherits from samestep's Config; `stages` makes the rows to run."""

    config: type[Config]
    stages: Callable[[Any], Sequence[Stage]]
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Named sets of values; `verify` is the small one that proofs run on."""
    aliases: Mapping[str, str | Alias] = field(default_factory=dict)
    """Flag names people know from elsewhere."""
    unused: Sequence[str] = ()
    """Trainable parameters that are known to get no gradient (glob patterns)."""
    describe: Callable[[Any], Mapping[str, str]] | None = None
    """Extra lines for the banner: (config) to name and value."""
    resolve: Callable[[Any], Any] | None = None
    """Fills in what a configuration leaves to its data or to a model it begins with, before the run is recorded."""
    read_pretrained: Callable[[Path], Any] | None = None
    """Recognises a published model: (folder) to the configuration it stands for, or None when it is of another kind."""
    sample: Callable[..., Any] | None = None
    """Generates from a trained model: (trained, prompts, samples, and how) to a record a text."""
    evaluate: Callable[..., Mapping[str, Any]] | None = None
    """Puts a trained model to the test: (trained, tasks, and how) to results, on rank 0."""
    export: Callable[..., None] | None = None
    """Writes a trained model in its published form: (trained, folder, options)."""
