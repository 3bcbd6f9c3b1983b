"""The folders in a model of sentence-transformers on the Hub: which of their files are needed, and whether they are
there."""

import re
from collections.abc import Collection
from pathlib import Path

from samestep.core.json_files import read_json_if_readable

MODULES = "modules.json"
_MODULE_FILE = re.compile(r"(\d+_\w+)/(config\.json|model\.safetensors|pytorch_model\.bin)")
_WITH_WEIGHTS = ("Dense", "LayerNorm")
_WITH_FILES = ("Pooling", *_WITH_WEIGHTS)


def module_files(names: Collection[str]) -> list[str]:
    """The files of modules among those of a model, safetensors before PyTorch's own."""
    found = [name for name in names if _MODULE_FILE.fullmatch(name)] if MODULES in names else []
    return sorted(
        name
        for name in found
        if not (name.endswith(".bin") and name.replace("pytorch_model.bin", "model.safetensors") in found)
    )


def has_all_modules(folder: Path) -> bool:
    """Whether a folder has the files of the modules that it lists, of those that an encoder needs; also where it lists
    none."""
    listed = read_json_if_readable(folder / MODULES)
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return all(_is_there(folder / str(entry.get("path", "")), str(entry.get("type", ""))) for entry in entries)


def _is_there(path: Path, kind: str) -> bool:
    if not kind.endswith(_WITH_FILES):
        return True
    has_weights = any((path / name).is_file() for name in ("model.safetensors", "pytorch_model.bin"))
    return (path / "config.json").is_file() and (has_weights or not kind.endswith(_WITH_WEIGHTS))
