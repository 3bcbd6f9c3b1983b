"""`samestep export RUN|CHECKPOINT FOLDER|FILE.safetensors [options]`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from samestep.cli.help import asks_for_help
from samestep.core.config import split_options
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.output import print_text
from samestep.kit.transformers_export import export_language_model, is_language_model
from samestep.train.trained.export import (
    PLAIN,
    ExportOptions,
    bytes_of,
    export_network,
    export_weight_files,
    load_lines,
)
from samestep.train.trained.trained_model import Trained, open_trained

HELP = """samestep export RUN|CHECKPOINT FOLDER [--dtype bf16|fp32] [--max_shard_size 5GB] [--adapters keep|merge]
samestep export RUN|CHECKPOINT FILE.safetensors [--learner NAME] [--dtype bf16|fp32] [--overwrite]
samestep export RUN|CHECKPOINT FOLDER|FILE.pt --weights [--learner NAME] [--overwrite]

Writes a trained model, as fp32, or with --dtype bf16 in half the size, and says how to load it. A folder is in the form
that others read: that of the recipe, if it has one; of a language model that of transformers, with tokenizer and chat
template, or with --adapters keep that of peft. The network of any other learner, or of one that is to go into a
.safetensors file, is written under its own names, in the type it was trained in unless --dtype is given.
`samestep.load` and `init_from` read all of them.

--which       of a run: last, best (by the metric of the stage), or the number of a step (last)
--stage       of a run: the stage whose checkpoint is meant (the last one)
--learner     the learner whose network is written (model, or the only one)
--adapters    of a language model: add LoRA adapters to their base (merge), or write them alone (keep)
--license     the licence that the model's card names, such as apache-2.0 (unknown)
--raw         the weights that were trained, also where the run averaged them
--weights     write LEARNER_step_N.pt for every learner, as a run with checkpoint.weights=true does, or one .pt file
--recipe      the recipe, if it has moved, or neither ships with samestep nor was started by you before
--onnx        of a sentence encoder: write onnx/model.onnx too
--max_shard_size  of a published format: the largest size of a file (5GB)
--overwrite   replace what was exported there before; nothing else is ever replaced"""
_NO_FOLDERS = (".pt", ".pth", ".bin", ".ckpt", ".gguf", ".onnx")
"""What a user who writes this expects to be a file."""
OPTIONS = ("which", "stage", "learner", "recipe", "dtype", "max_shard_size", "adapters", "license")
SWITCHES = ("overwrite", "raw", "weights", "onnx")


def run(args: Sequence[str]) -> int:
    """Write a model."""
    if not args or asks_for_help(args):
        print_text(HELP)
        return EXIT_DONE
    options, rest = split_options(args, OPTIONS, SWITCHES)
    unknown = [arg for arg in rest if arg.startswith("-")]
    if unknown or len(rest) != 2:
        what = f"there is no option {unknown[0]}" if unknown else f"two arguments are expected, not {len(rest)}"
        raise UserError(f"{what}; the command is: {HELP.splitlines()[0]}")
    export_options = ExportOptions(
        dtype=options.get("dtype", ExportOptions.dtype),
        max_shard_size=bytes_of(options.get("max_shard_size", str(ExportOptions.max_shard_size))),
        adapters=options.get("adapters", ExportOptions.adapters),
        licence=options.get("license", ExportOptions.licence),
        onnx="onnx" in options,
        overwrite="overwrite" in options,
    )
    trained, target = _open(rest[0], options, raw="raw" in options), Path(rest[1])
    exported = _export(trained, target, options, export_options)
    size = sum(file.stat().st_size for file in exported.files) / 1e6
    count = f"{len(exported.files)} weight file{'s' if len(exported.files) > 1 else ''}"
    of_type = f" as {options['dtype']}" if "dtype" in options else ""
    print_text(f"exported {trained.source} to {target}: {size:,.1f} MB{of_type} in {count}")
    print_text("\n".join(filter(None, (exported.note, "load it with:"))))
    print_text("\n".join(f"  {line}".rstrip() for line in exported.usage))
    return EXIT_DONE


class _Exported(NamedTuple):
    files: Sequence[Path]
    """Of weights."""
    usage: Sequence[str]
    """Lines of Python that load it."""
    note: str = ""
    """What else to know."""


def _export(trained: Trained, target: Path, options: Mapping[str, str], how: ExportOptions) -> _Exported:
    """Write the model in the form that is meant."""
    if "weights" in options:
        forms = ("dtype", "max_shard_size", "adapters", "license", "onnx")
        _refuse(options, forms, "--weights writes them as they were trained")
        files = export_weight_files(trained, target, how.overwrite)
        return _Exported(files, ["import torch", "", f'weights = torch.load("{files[0]}", weights_only=True)'])
    is_file = target.suffix == ".safetensors"
    if target.suffix in _NO_FOLDERS:
        raise UserError(f"name a folder, FILE.safetensors, or with --weights FILE.pt, instead of {target}")
    if trained.recipe.language_models is None:
        _refuse(options, ("adapters",), f"the recipe {trained.name} trains no language model")
    if is_file or not trained.recipe.exports_onnx:
        _refuse(options, ("onnx",), "only a folder of a sentence encoder has that form")
    own = trained.recipe.export if "learner" not in options else None
    write = own or (export_language_model if is_language_model(trained) else None)
    if write and not is_file:
        usage = write(trained, target, how)
        return _Exported(sorted(target.rglob("*.safetensors")), usage)
    _refuse(options, ("max_shard_size", "adapters"), "one network is written to one file, adapters added")
    if is_file:
        _refuse(options, ("license",), "one file has no card")
    file = export_network(trained, target, options.get("dtype"), how.overwrite, how.licence)
    return _Exported([file], load_lines(target), "" if is_file else PLAIN)


def _open(source: str, options: Mapping[str, str], raw: bool) -> Trained:
    names = {name: options.get(name) for name in ("learner", "stage", "recipe")}
    return open_trained(source, options.get("which", "last"), averaged=not raw, **names)


def _refuse(options: Mapping[str, str], names: Sequence[str], why: str) -> None:
    given = next((name for name in names if name in options), None)
    if given is not None:
        raise UserError(f"leave out --{given}: {why}")
