"""Exporting a trained model: its weights as safetensors, and beside them the files that the recipe adds."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from samestep.checkpoint.files import remove_folder
from samestep.checkpoint.safetensor_files import write_safetensors
from samestep.checkpoint.weight_files import check_shapes
from samestep.checkpoint.weight_sources import RenamedWeights
from samestep.core.errors import UserError
from samestep.core.records import replace_folder, sync_folder
from samestep.parallel.build import build_uninitialized
from samestep.train.pretrained.open_weights import OUTER, names_in
from samestep.train.pretrained.trained_model import Trained

TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@dataclass(frozen=True)
class ExportOptions:
    """How to write a model."""

    dtype: str = "fp32"
    """Type of the weights: fp32, or bf16 for half the size."""
    max_shard_size: int = 5 * 10**9
    """Bytes of weights a file may hold."""
    overwrite: bool = False
    """Replace a model that exists already."""

    def __post_init__(self) -> None:
        """Refuse invalid options."""
        if self.dtype not in TYPES:
            raise UserError(f"--dtype must be {' or '.join(TYPES)}, not {self.dtype!r}")
        if self.max_shard_size < 1:
            raise UserError("--max_shard_size must be above zero")


def bytes_of(text: str) -> int:
    """A size such as `5GB`, `500MB` or a plain number of bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]?b?)", text.strip().lower())
    if found is None:
        raise UserError(f"{text!r} is not a size; write for example 5GB, 500MB or 2000000")
    return int(float(found.group(1)) * _UNITS[found.group(2).removesuffix("b")])


def write_model(
    trained: Trained,
    make: Callable[[], nn.Module],
    folder: Path,
    options: ExportOptions,
    beside: Callable[[Path], None],
) -> None:
    """Write the network that `make` builds, under its names with `model.` in front, and the files that `beside` adds.

    The folder gets its name when all of it is written. Weights pass through memory one file at a time.
    """
    own = build_uninitialized(make).state_dict()
    source = trained.weights()
    names = names_in(source, own)
    check_shapes(source.layout, {names[name]: like.shape for name, like in own.items()}, f"weights of {trained.source}")
    renamed = RenamedWeights(source, {OUTER + name: theirs for name, theirs in names.items()})
    with _staging_folder(folder, options.overwrite) as staging:
        beside(staging)
        write_safetensors(staging, renamed, list(renamed.names), TYPES[options.dtype], options.max_shard_size)


@contextmanager
def _staging_folder(folder: Path, overwrite: bool) -> Iterator[Path]:
    """A new folder that gets its name at the end; an older one of that name stays unchanged until then."""
    _refuse_existing(folder, overwrite)
    staging = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        remove_folder(staging)
        staging.mkdir(parents=True)
        yield staging
        sync_folder(staging)
        replace_folder(staging, folder)
    except OSError as error:
        raise UserError(f"cannot write {folder} ({error.strerror or error}); choose a folder with room") from error
    finally:
        remove_folder(staging)


def _refuse_existing(folder: Path, overwrite: bool) -> None:
    """Only what looks like a model is ever replaced."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    is_model = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    if folder.exists() and not is_model:
        raise UserError(f"{folder} exists and holds something else than a model; choose another folder")
    if folder.exists() and not overwrite:
        raise UserError(f"{folder} exists; choose another folder, or replace it with --overwrite")
