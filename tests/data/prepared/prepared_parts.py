"""Small sources, and folders prepared from them."""

import json
from pathlib import Path
from typing import Any

from samestep.data.prepared import Prepared, open_prepared
from samestep.data.prepared.config import PrepareConfig
from samestep.data.prepared.prepare import prepare
from samestep.data.prepared.sources import find_sources


def made(folder: Path, *sources: Path, **settings: Any) -> Prepared:
    """Prepare into `folder`, and open it."""
    config = PrepareConfig(out=str(folder), **settings)
    prepare(find_sources([str(source) for source in sources], config.columns), config, lambda what, done, total: None)
    return open_prepared(folder)


def lines(path: Path, *records: object) -> Path:
    """A JSONL file."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def documents(path: Path, *texts: str) -> Path:
    """A JSONL file of texts."""
    return lines(path, *({"text": text} for text in texts))
