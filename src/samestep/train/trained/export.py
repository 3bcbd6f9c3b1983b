"""Exporting a trained model.

`write_model` is for recipes with a published form of their own: weights as safetensors, and the files that the recipe
adds. `export_network` writes the network of any learner of any recipe, `export_weight_files` plain `.pt` files.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import torch
from torch import Tensor, nn

from samestep.checkpoint.manifest import read_manifest
from samestep.checkpoint.safetensor_files import save_safetensors, write_safetensors
from samestep.checkpoint.weight_files import check_shapes, mark_of
from samestep.checkpoint.weight_sources import RenamedWeights
from samestep.core.config import dump
from samestep.core.errors import UserError
from samestep.core.json_files import replace_folder, sync_folder
from samestep.core.safe_files import temporary_folder
from samestep.parallel.build import build_uninitialized
from samestep.train.learner.lora import merged_weights
from samestep.train.trained.model_card import UNNAMED, trained_card, write_card
from samestep.train.trained.published import RECORD, PublishedRecord, read_record
from samestep.train.trained.told import told, told_text
from samestep.train.trained.trained_model import Trained
from samestep.train.weights.run_checkpoints import learners_of, write_weights
from samestep.train.weights.sources import OUTER, is_checkpoint, names_in

EXPORT_TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
"""The types of exported weights, by their names on the command line."""
ADAPTERS = ("merge", "keep")
PLAIN = "The weights of a network, under its own names; other programs know no class that computes the same."
"""Of a network that is exported as it is."""
_MARK = "exported by samestep"
"""Of a .pt file."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@dataclass(frozen=True)
class ExportOptions:
    """How to write a model."""

    dtype: str = "fp32"
    """Type of the weights: fp32, or bf16 for half the size."""
    max_shard_size: int = 5 * 10**9
    """Bytes of weights a file may hold."""
    adapters: str = "merge"
    """Adapters are added to their base (`merge`), or written as a folder of peft (`keep`)."""
    licence: str = "unknown"
    """What the model's card says of its licence."""
    onnx: bool = False
    """Write onnx/model.onnx too, if the recipe can."""
    overwrite: bool = False
    """Replace a model that exists already."""

    def __post_init__(self) -> None:
        """Refuse invalid options."""
        if self.dtype not in EXPORT_TYPES:
            raise UserError(f"--dtype must be {' or '.join(EXPORT_TYPES)}, not {self.dtype!r}")
        if self.max_shard_size < 1:
            raise UserError("--max_shard_size must be above zero")
        if self.adapters not in ADAPTERS:
            raise UserError(f"--adapters must be {' or '.join(ADAPTERS)}, not {self.adapters!r}")
        if self.onnx and self.dtype != "fp32":
            raise UserError("leave out --dtype with --onnx: onnx/model.onnx is written as fp32, so both are the same")
        if not re.fullmatch(r"[\w.+-]+", self.licence):
            raise UserError(f"--license must be the short name of a licence such as apache-2.0, not {self.licence!r}")


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
    with staging_folder(folder, options.overwrite, PublishedRecord(trained.name)) as staging:
        beside(staging)
        write_safetensors(staging, renamed, list(renamed.names), EXPORT_TYPES[options.dtype], options.max_shard_size)


def export_network(
    trained: Trained, target: Path, dtype: str | None = None, overwrite: bool = False, licence: str = "unknown"
) -> Path:
    """Write the network of a learner to one safetensors file, `target` or LEARNER.safetensors in the folder `target`,
    under the names of its own state dict. Returns the file.

    Adapters are added to their base, and a tensor with two names is written under both, so that `load_state_dict` of
    the plain network takes the file as it is. The metadata, and samestep.json in a folder, say where it comes from;
    `samestep.load` reads it again.
    """
    is_file, learner = target.suffix == ".safetensors", trained.learner_name()
    (_refuse_existing_file if is_file else check_target)(target, overwrite)  # before the network is read
    weights, kind = merged_weights(trained.network(learner)), EXPORT_TYPES[dtype] if dtype else None
    record = told_record(trained, learner)
    if is_file:
        with _staging_file(target, overwrite) as staging:
            save_weights(staging, weights, kind, record)
        return target
    file = f"{learner}.safetensors"
    with staging_folder(target, overwrite, record) as folder:
        save_weights(folder / file, weights, kind, record)
        card = trained_card(trained, PLAIN, load_lines("path/to/this/folder"), licence, base=_base(trained, learner))
        write_card(folder, card)
    return target / file


def _base(trained: Trained, learner: str) -> str | None:
    """The model that a learner began as, where a setting names it."""
    setting = trained.recipe.model_settings.get(learner)
    name = attrgetter(setting)(trained.config) if setting else None
    return f"`{told_text(name) or 'a model whose name is not told'}`" if name else None


def load_lines(path: object) -> list[str]:
    """Lines of Python that load a network with samestep."""
    return ["import samestep", "", f"network = samestep.load({quoted(path)})"]


def quoted(path: object) -> str:
    """A path in a line of Python."""
    return json.dumps(str(path), ensure_ascii=False)


def told_record(
    trained: Trained, learner: str, form: str = "", models: Mapping[str, str] | None = None
) -> PublishedRecord:
    """What is needed to build the network of a learner again, and nothing of the machine it was made on; `models` are
    in the folder, by their settings."""
    step = read_manifest(trained.source).step if is_checkpoint(trained.source) else None
    settings = {name: value for name, value in told(dump(trained.config)).items() if name not in ("out", "name", "log")}
    recipe = told_text(trained.name) or UNNAMED
    return PublishedRecord(recipe, trained.stage, step, learner, settings, form, dict(models or {}))


def export_weight_files(trained: Trained, target: Path, overwrite: bool = False) -> list[Path]:
    """Write LEARNER_step_N.pt into the folder `target`, as a run with `checkpoint.weights=true` does, of the learner
    that is meant or of all; or the file `target`, if it is a .pt file, of the one that is meant."""
    if not is_checkpoint(trained.source):
        raise UserError(f"{trained.source} is no checkpoint; plain weight files are made of a run or a checkpoint")
    keys = {name: parts.state for name, parts in learners_of(trained.source).items()}
    is_file = target.suffix == ".pt"
    if trained.learner is not None or is_file:
        keys = {trained.learner_name(): keys[trained.learner_name()]}
    step = read_manifest(trained.source).step
    files = {name: target if is_file else target / f"{name}_step_{step}.pt" for name in keys}
    for file in files.values():
        _refuse_existing_file(file, overwrite)
    trained.check_intact()
    write_weights(trained.source, {keys[name]: [file] for name, file in files.items()}, mark=_MARK)
    return list(files.values())


def save_weights(
    file: Path, weights: Mapping[str, Tensor], dtype: torch.dtype | None = None, record: PublishedRecord | None = None
) -> None:
    """Write weights to one safetensors file, in one type, if it is given; none shares memory with another there."""
    taken: set[int] = set()
    found = {}
    for name, weight in weights.items():
        tensor = weight.detach().to(dtype if dtype and weight.is_floating_point() else weight.dtype).contiguous()
        memory = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if memory in taken else tensor
        taken.add(memory)
    save_safetensors(file, found, record.metadata() if record else None)


@contextmanager
def _staging_file(file: Path, overwrite: bool) -> Iterator[Path]:
    """A path to write to that becomes `file` at the end."""
    _refuse_existing_file(file, overwrite)
    try:
        with temporary_folder(file) as folder:
            yield folder / file.name
            os.replace(folder / file.name, file)
        sync_folder(file.parent)
    except OSError as error:
        raise UserError(f"cannot write {file} ({error.strerror or error}); choose a folder with room") from error


def _refuse_existing_file(file: Path, overwrite: bool) -> None:
    """Only a file that was exported is ever replaced."""
    if not file.exists():
        return
    is_exported = mark_of(file) == _MARK if file.suffix == ".pt" else _record_in(file) is not None
    if not (file.is_file() and is_exported):
        raise UserError(f"{file} exists and was not exported by samestep; choose another name")
    if not overwrite:
        raise UserError(f"{file} exists; choose another name, or replace it with --overwrite")


@contextmanager
def staging_folder(folder: Path, overwrite: bool, record: PublishedRecord) -> Iterator[Path]:
    """A new folder that gets its record and its name at the end; an older one of that name stays unchanged until
    then."""
    check_target(folder, overwrite)
    try:
        with temporary_folder(folder, private=False) as staging:
            yield staging
            record.write(staging)
            sync_folder(staging)
            replace_folder(staging, folder)
    except OSError as error:
        raise UserError(f"cannot write {folder} ({error.strerror or error}); choose a folder with room") from error


def check_target(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that may not be written: only what an export wrote is ever replaced, and nothing that somebody
    put there since."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    record = _record_in(folder) if folder.is_dir() else None
    if record is None:
        raise UserError(f"{folder} exists and was not exported by samestep; choose another folder")
    added = sorted({path.name for path in folder.iterdir()} - {*record.files, RECORD})
    if added:
        raise UserError(
            f"{folder} also holds {added[0]}, which was not exported; choose another folder, or move it away"
        )
    if not overwrite:
        raise UserError(f"{folder} exists; choose another folder, or replace it with --overwrite")


def _record_in(path: Path) -> PublishedRecord | None:
    """The record of what was exported there; None if it is something else."""
    try:
        return read_record(path)
    except UserError:  # it cannot be read as one
        return None
