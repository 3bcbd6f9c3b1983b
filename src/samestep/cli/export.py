"""`samestep export RUN|CHECKPOINT FOLDER [--dtype bf16|fp32] [--max_shard_size 5GB] [--overwrite]`."""

from collections.abc import Sequence
from pathlib import Path

from samestep.core.config.command_line import take
from samestep.core.errors import EXIT_DONE, UserError
from samestep.train.pretrained.export import ExportOptions, bytes_of
from samestep.train.pretrained.trained import open_trained

HELP = """samestep export RUN|CHECKPOINT FOLDER [--dtype bf16|fp32] [--max_shard_size 5GB] [--overwrite]

Writes a trained model as others publish theirs: config.json, safetensors, tokenizer; sampling.json beside them says
how its run wrote text. Of a run, its newest whole checkpoint is taken. The weights are stored as fp32, or with --dtype
bf16 in half the size."""


def run(words: Sequence[str]) -> int:
    """Write a model folder."""
    if not words or "-h" in words or "--help" in words:
        print(HELP)
        return EXIT_DONE
    options, rest = take([word for word in words if word != "--overwrite"], ["dtype", "max_shard_size"])
    unknown = [word for word in rest if word.startswith("-")]
    if unknown or len(rest) != 2:
        what = f"there is no option {unknown[0]}" if unknown else f"two words are expected, not {len(rest)}"
        raise UserError(f"{what}; the command is: {HELP.splitlines()[0]}")
    chosen = ExportOptions(
        dtype=options.get("dtype", ExportOptions.dtype),
        max_shard_size=bytes_of(options.get("max_shard_size", str(ExportOptions.max_shard_size))),
        overwrite="--overwrite" in words,
    )
    trained, folder = open_trained(rest[0]), Path(rest[1])
    if trained.recipe.export is None:
        raise UserError(f"the recipe {trained.name!r} has no published form; there is nothing to export")
    trained.recipe.export(trained, folder, chosen)
    files = sorted(folder.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files) / 1e6
    print(f"exported {trained.source} to {folder}: {size:,.1f} MB as {chosen.dtype} in {len(files)} weight file(s)")
    return EXIT_DONE
