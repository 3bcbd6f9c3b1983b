"""Exporting a trained model.

`write_model` is for recipes with a published form of their own: weights as safetensors, and the files that the recipe
adds. `export_network` writes the network of any learner of any recipe, `export_weight_files` plain `.pt` files.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from samestep.checkpoint.files import remove_folder
from samestep.checkpoint.manifest import read_manifest
from samestep.checkpoint.safetensor_files import save_safetensors, write_safetensors
from samestep.checkpoint.weight_files import check_shapes
from samestep.checkpoint.weight_sources import RenamedWeights
from samestep.core.config import dump
from samestep.core.errors import UserError
from samestep.core.records import replace_folder, sync_folder
from samestep.core.safe_files import remove_leftovers, temporary_folder, temporary_name
from samestep.parallel.build import build_uninitialized
from samestep.train.learner.lora import merged_weights
from samestep.train.trained.published import RECORD, PublishedRecord
from samestep.train.trained.trained_model import Trained
from samestep.train.weights.run_checkpoints import learners_of, write_weights
from samestep.train.weights.sources import OUTER, is_checkpoint, names_in

EXPORT_TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
"""The types of exported weights, by their names on the command line."""
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
        if self.dtype not in EXPORT_TYPES:
            raise UserError(f"--dtype must be {' or '.join(EXPORT_TYPES)}, not {self.dtype!r}")
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
        PublishedRecord(trained.name).write(staging)
        write_safetensors(staging, renamed, list(renamed.names), EXPORT_TYPES[options.dtype], options.max_shard_size)


def export_network(trained: Trained, target: Path, dtype: str | None = None, overwrite: bool = False) -> Path:
    """Write the network of a learner to one safetensors file, `target` or LEARNER.safetensors in the folder `target`,
    under the names of its own state dict. Returns the file.

    Adapters are added to their base, and a tensor with two names is written under both, so that `load_state_dict` of
    the plain network takes the file as it is. The metadata, and samestep.json in a folder, say where it comes from;
    `samestep.load` reads it again.
    """
    learner = trained.learner_name()
    weights = _separate(merged_weights(trained.network(learner)), EXPORT_TYPES[dtype] if dtype else None)
    step = read_manifest(trained.source).step if is_checkpoint(trained.source) else None
    record = PublishedRecord(trained.name, trained.stage, step, learner, dump(trained.config))
    if target.suffix == ".safetensors":
        with _staging_file(target, overwrite) as staging:
            save_safetensors(staging, weights, record.metadata())
        return target
    file = f"{learner}.safetensors"
    with _staging_folder(target, overwrite) as folder:
        record.write(folder)
        save_safetensors(folder / file, weights, record.metadata())
    return target / file


def export_weight_files(trained: Trained, folder: Path, overwrite: bool = False) -> list[Path]:
    """Write LEARNER_step_N.pt, as a run with `checkpoint.weights=true` does, of the learner that is meant or of all."""
    if not is_checkpoint(trained.source):
        raise UserError(f"{trained.source} is no checkpoint; plain weight files are made of a run or a checkpoint")
    keys = {name: parts.state for name, parts in learners_of(trained.source).items()}
    if trained.learner is not None:
        keys = {trained.learner_name(): keys[trained.learner_name()]}
    suffix = f"step_{read_manifest(trained.source).step}"
    files = [folder / f"{name}_{suffix}.pt" for name in keys]
    for file in files if not overwrite else ():
        if file.exists():
            raise UserError(f"{file} exists; choose another folder, or replace it with --overwrite")
    trained.check_intact()
    write_weights(folder, keys, trained.source, [suffix])
    return files


def _separate(weights: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """The weights in one type, if it is given, none sharing memory with another, as safetensors needs it."""
    taken: set[int] = set()
    found = {}
    for name, weight in weights.items():
        tensor = weight.detach().to(dtype if dtype and weight.is_floating_point() else weight.dtype).contiguous()
        memory = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if memory in taken else tensor
        taken.add(memory)
    return found


@contextmanager
def _staging_file(file: Path, overwrite: bool) -> Iterator[Path]:
    """A path to write to that becomes `file` at the end."""
    if file.exists() and (not overwrite or not file.is_file()):
        raise UserError(f"{file} exists; choose another name, or replace it with --overwrite")
    try:
        with temporary_folder(file) as folder:
            yield folder / file.name
            os.replace(folder / file.name, file)
        sync_folder(file.parent)
    except OSError as error:
        raise UserError(f"cannot write {file} ({error.strerror or error}); choose a folder with room") from error


@contextmanager
def _staging_folder(folder: Path, overwrite: bool) -> Iterator[Path]:
    """A new folder that gets its name at the end; an older one of that name stays unchanged until then."""
    _refuse_existing(folder, overwrite)
    staging = temporary_name(folder)
    try:
        remove_leftovers(folder.parent, folder.name)
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
    is_model = any((folder / name).is_file() for name in ("config.json", RECORD)) and any(folder.glob("*.safetensors"))
    if folder.exists() and not is_model:
        raise UserError(f"{folder} exists and holds something else than a model; choose another folder")
    if folder.exists() and not overwrite:
        raise UserError(f"{folder} exists; choose another folder, or replace it with --overwrite")
