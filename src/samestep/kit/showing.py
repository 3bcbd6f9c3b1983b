"""How what `samestep sample` made is printed. Imports no torch, so that `--help` answers at once."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from samestep.core.json_files import Json
from samestep.core.output import print_text


def show_texts(records: Sequence[Mapping[str, Json]]) -> None:
    """The texts, each after a separator line if there are several."""
    for number, record in enumerate(records, 1):
        if len(records) > 1:
            print_text(f"--- {number} of {len(records)} ---")
        print_text(record["text"] if "text" in record else json.dumps(record, ensure_ascii=False))


def show_lines(trained: Any, records: Sequence[Mapping[str, Json]]) -> None:
    """The texts, one below the other: for a `Verb` whose texts are lines."""
    for record in records:
        print_text(record["text"])
