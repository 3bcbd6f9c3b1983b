"""Models of transformers may name code that would be downloaded and run; theirs is not run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.records import read_json_if_readable

_IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")


def refuse_hub_kernels(config: Path) -> None:
    """Refuse a config.json that names a repository of kernels on the Hub, which transformers would fetch and run."""
    for name, value in _settings(read_json_if_readable(config)):
        if name.lstrip("_").removesuffix("_internal") in _IMPLEMENTATIONS and "/" in str(value):
            raise UserError(f"Remove {name} from {config}; it names code ({value}), and code of models is not run.")


def _settings(found: Any) -> Iterator[tuple[str, Any]]:
    """All settings with their values, also those of parts."""
    waiting = [found]
    while waiting:
        part = waiting.pop()
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        yield from part.items() if isinstance(part, dict) else ()
