"""`samestep evaluate MODEL [options] [settings]`: evaluate a trained model, as its recipe does."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samestep.cli.model_verbs import VALIDATION, ModelVerb
from samestep.cli.model_verbs import run as run_verb
from samestep.core.config import dump
from samestep.core.json_files import write_atomically
from samestep.core.output import print_text

if TYPE_CHECKING:
    from samestep.train.trained.trained_model import Trained

ABOUT = """Evaluates a trained model. MODEL is a run (by name or path), a checkpoint, or a published model,
also of the Hub.
`torchrun --nproc_per_node=4 -m samestep evaluate ...` splits the work among all ranks, with the same result."""


def run(args: Sequence[str]) -> int:
    """Print the results of a trained model."""
    switches = {
        VALIDATION: "the metrics of the stage's validation; so it is where a recipe has no evaluation of its own"
    }
    out = "write all results to this .json file"
    return run_verb(ModelVerb("evaluate", ABOUT, out, _show, _write, switches), args)


def _show(results: Mapping[str, Any]) -> None:
    rows = list(_flat(results))
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print_text(f"{name:{width}}  {value:.6g}" if isinstance(value, float) else f"{name:{width}}  {value}")


def _flat(results: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values, those of a nested mapping as `outer/inner`."""
    for name, value in results.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _write(file: Path, trained: "Trained", options: Any, results: Mapping[str, Any]) -> None:
    """The results, with the model, its settings and the options."""
    about = {"model": str(trained.source), "settings": dump(trained.config), **dump(options)}
    content = json.dumps({"samestep": about, **results}, indent=2, ensure_ascii=False, default=str)
    write_atomically(file, content + "\n")
