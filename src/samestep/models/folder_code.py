"""Models of transformers may name code that would be downloaded and run; theirs is not run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.json_files import read_json_if_readable

_IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")


def refuse_hub_kernels(config: Path) -> None:
    """Refuse a config.json that names a repository of kernels on the Hub, which transformers would fetch and run."""
    for name, value in _settings(read_json_if_readable(config)):
        if name.lstrip("_").removesuffix("_internal") in _IMPLEMENTATIONS and "/" in str(value):
            raise UserError(f"Remove {name} from {config}; it names code ({value}), and code of models is not run.")


def refuse_own_code(file: Path, fix: str) -> None:
    """Refuse a config.json or tokenizer_config.json that names code of its own, which the stock class of the same name
    need not agree with. `fix` says how to state what is meant."""
    found = read_json_if_readable(file)
    if named := found.get("auto_map") if isinstance(found, dict) else None:
        classes = named.items() if isinstance(named, dict) else [("auto_map", named)]
        shown = ", ".join(f"{name}: {value}" for name, value in classes)[:200]
        raise UserError(
            f"{fix} {file} names code of its own ({shown}), which is not run, and transformers' own class may give "
            "other vectors."
        )


def _settings(found: Any) -> Iterator[tuple[str, Any]]:
    """All settings with their values, also those of parts."""
    waiting = [found]
    while waiting:
        part = waiting.pop()
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        yield from part.items() if isinstance(part, dict) else ()
