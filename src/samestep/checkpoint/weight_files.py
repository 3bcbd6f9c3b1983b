"""Plain weight files, as other scripts write and read them: a `.pt` of tensors, or safetensors.

Nothing here runs code from a file: `.pt` is read by torch's weights-only loader, and what that refuses we refuse.
"""

import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from samestep.checkpoint.safetensor_files import SafetensorsFiles, first_few
from samestep.checkpoint.weight_sources import InMemoryWeights, RenamedWeights, WeightSource
from samestep.core.errors import UserError, quoted
from samestep.core.json_files import atomic_file
from samestep.core.pt_files import UnreadableFile, is_weights, read_pt

NAMES = ("model_state_dict", "state_dict", "model")
"""Keys under which a file may hold its weights beside other content; we write the first."""
_WRAPPED = "module."
_COMPILED = "_orig_mod."
_PLAIN = (type(None), bool, int, float, str, torch.Tensor)


class WeightFile(NamedTuple):
    """A weight file whose weights are not read yet."""

    source: WeightSource
    extra: dict[str, Any]
    """What else was in it."""
    notes: list[str]
    """How it was read, where the user should know."""


def save_weights(
    path: Path, weights: Mapping[str, torch.Tensor], extra: Mapping[str, Any] | None = None, mark: str = ""
) -> None:
    """Write weights to a `.pt` file, atomically. With `extra`, the weights are beside it under `model_state_dict`.
    `mark` becomes the comment of the file, which is a zip archive: loaders pass over it, and `mark_of` reads it."""
    names = _plain_names(weights)
    content: dict[str, Any] = {names[name]: _on_cpu(tensor) for name, tensor in weights.items()}
    assert len(content) == len(weights), "two weights have the same name once wrappers' prefixes are gone"
    if extra is not None:
        assert NAMES[0] not in extra
        _check_plain(extra)
        content = {**extra, NAMES[0]: content}
    with atomic_file(path) as file:
        torch.save(content, file)
        if mark:
            file.seek(-2, os.SEEK_END)  # an archive ends with the length of its comment, and the comment
            file.write(len(mark.encode()).to_bytes(2, "little") + mark.encode())


def mark_of(path: Path) -> str:
    """The mark of a weight file; empty if it has none, or is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.comment.decode("utf-8", "replace")
    except (zipfile.BadZipFile, OSError):
        return ""


def open_weight_file(path: Path) -> WeightFile:
    """A `.pt` or `.safetensors` file, or a folder of safetensors; weights are named without prefixes of wrappers.

    The weights stay on the disk until they are copied into their tensors.
    """
    if not path.exists():
        raise UserError(f"there is no {path}; give a .pt or .safetensors file, or a folder of safetensors")
    if path.is_dir() or path.suffix == ".safetensors":
        found = WeightFile(SafetensorsFiles(path), {}, [])
    else:
        found = _find_weights(path, _read_pt(path))
    names = {plain: original for original, plain in _plain_names(found.source.layout).items()}
    if len(names) < len(found.source.layout):
        raise UserError(f"two names in {path} are the same without {_COMPILED!r}; rename one and save the file again")
    if names.keys() == found.source.layout.keys():
        return found
    found.notes.append(f"removed the prefixes of wrappers from the names ({_WRAPPED} or {_COMPILED})")
    return found._replace(source=RenamedWeights(found.source, names))


def check_shapes(
    weights: Mapping[str, torch.Tensor], expected: Mapping[str, Sequence[int]], source: str = "weights"
) -> None:
    """Raise UserError if names or shapes of weights are not as expected; it names the first few that differ."""
    both = sorted(expected.keys() & weights.keys())
    differences = {
        "missing": sorted(expected.keys() - weights.keys()),
        "unknown to the model": sorted(weights.keys() - expected.keys()),
        "of another shape": [
            f"{name} {tuple(weights[name].shape)} instead of {tuple(expected[name])}"
            for name in both
            if tuple(weights[name].shape) != tuple(expected[name])
        ],
    }
    found = [f"{len(names)} {what}, namely {first_few(names)}" for what, names in differences.items() if names]
    if found:
        raise UserError(f"the {source} do not fit the model ({'; '.join(found)}); choose the model they were made with")


def _plain_names(names: Iterable[str]) -> dict[str, str]:
    """Every name without prefixes of wrappers: that of torch.compile anywhere, that of DDP if all names have it."""
    plain = {name: name.replace(_COMPILED, "") for name in names}
    while plain and all(name.startswith(_WRAPPED) for name in plain.values()):
        plain = {name: short.removeprefix(_WRAPPED) for name, short in plain.items()}
    return plain


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    assert not hasattr(tensor, "full_tensor"), "gather a sharded weight before saving it to a .pt file"
    tensor = tensor.detach().cpu()
    is_view = tensor.untyped_storage().nbytes() != tensor.nbytes  # torch.save would write all of the storage
    return tensor.clone() if is_view else tensor


def _check_plain(value: Any) -> None:
    """Allow only what the weights-only loader reads back."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            assert isinstance(key, str), f"{key!r} is not a string"
            _check_plain(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_plain(inner)
    else:
        assert isinstance(value, _PLAIN), f"a {type(value).__name__} cannot go into a plain weight file"


def _read_pt(path: Path) -> Any:
    try:
        return read_pt(path)
    except UnreadableFile as error:
        raise UserError(
            f"{path} cannot be read as plain weights, without running code from it; save it again with "
            "torch.save(model.state_dict(), path), or as safetensors"
        ) from error


def _find_weights(path: Path, content: Any) -> WeightFile:
    if is_weights(content):
        return WeightFile(InMemoryWeights(content), {}, [])
    found = [name for name in NAMES if isinstance(content, dict) and is_weights(content.get(name))]
    if found:
        extra = {key: value for key, value in content.items() if key != found[0]}
        notes = [f"took the weights under {found[0]!r}, not those under {quoted(found[1:])}"] if found[1:] else []
        return WeightFile(InMemoryWeights(content[found[0]]), extra, notes)
    keys = f"only {first_few([str(key) for key in content])}" if isinstance(content, dict) else type(content).__name__
    raise UserError(f"{path} has no weights in it ({keys}); they must be all of it, or be under {' or '.join(NAMES)}")
