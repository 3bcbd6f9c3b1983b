"""`samestep export RUN|CHECKPOINT FOLDER [--dtype bf16|fp32] [--max_shard_size 5GB] [--overwrite]`."""

from collections.abc import Sequence
from pathlib import Path

from samestep.core.config import split_options
from samestep.core.errors import EXIT_DONE, UserError
from samestep.train.pretrained.export import ExportOptions, bytes_of
from samestep.train.pretrained.trained_model import open_trained

HELP = """samestep export RUN|CHECKPOINT FOLDER [--dtype bf16|fp32] [--max_shard_size 5GB] [--overwrite]

Writes a trained model in the usual published format: config.json, safetensors, tokenizer; sampling.json beside them
holds the run's sampling settings. Of a run, the newest intact checkpoint is exported. The weights are stored as fp32,
or with --dtype bf16 in half the size."""


def run(args: Sequence[str]) -> int:
    """Write a model folder."""
    if not args or "-h" in args or "--help" in args:
        print(HELP)
        return EXIT_DONE
    options, rest = split_options([arg for arg in args if arg != "--overwrite"], ["dtype", "max_shard_size"])
    unknown = [arg for arg in rest if arg.startswith("-")]
    if unknown or len(rest) != 2:
        what = f"there is no option {unknown[0]}" if unknown else f"two arguments are expected, not {len(rest)}"
        raise UserError(f"{what}; the command is: {HELP.splitlines()[0]}")
    export_options = ExportOptions(
        dtype=options.get("dtype", ExportOptions.dtype),
        max_shard_size=bytes_of(options.get("max_shard_size", str(ExportOptions.max_shard_size))),
        overwrite="--overwrite" in args,
    )
    trained, folder = open_trained(rest[0]), Path(rest[1])
    if trained.recipe.export is None:
        raise UserError(f"the recipe {trained.name!r} has no export format for its models; there is nothing to export")
    trained.recipe.export(trained, folder, export_options)
    files = sorted(folder.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files) / 1e6
    written = f"{size:,.1f} MB as {export_options.dtype} in {len(files)} weight file(s)"
    print(f"exported {trained.source} to {folder}: {written}")
    return EXIT_DONE
