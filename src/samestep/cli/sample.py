"""`samestep sample MODEL [options] [settings]`: generate from a trained model, as its recipe does."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samestep.cli.model_verbs import ModelVerb
from samestep.cli.model_verbs import run as run_verb
from samestep.core.safe_files import write_text
from samestep.kit.showing import show_texts

if TYPE_CHECKING:
    from samestep.train.trained.trained_model import Trained

ABOUT = """Generates from a trained model. MODEL is a run (by name or path), a checkpoint, or a published model,
also of the Hub.
`torchrun --nproc_per_node=4 -m samestep sample ...` splits the work among all ranks, with the same result."""


def run(args: Sequence[str]) -> int:
    """Print samples of a trained model."""
    return run_verb(
        ModelVerb("sample", ABOUT, "also write the samples to this .jsonl file", show_texts, _write, {}), args
    )


def _write(file: Path, trained: "Trained", options: Any, records: Sequence[Mapping[str, Any]]) -> None:
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    write_text(file, "".join(lines))
