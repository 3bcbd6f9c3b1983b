"""`samestep export RUN|CHECKPOINT FOLDER|FILE.safetensors [options]`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from samestep.core.config import split_options
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.output import print_text
from samestep.train.trained.export import (
    ExportOptions,
    bytes_of,
    export_network,
    export_weight_files,
)
from samestep.train.trained.trained_model import Trained, open_trained

HELP = """samestep export RUN|CHECKPOINT FOLDER [--dtype bf16|fp32] [--max_shard_size 5GB] [--overwrite]
samestep export RUN|CHECKPOINT FOLDER|FILE.safetensors [--learner NAME] [--dtype bf16|fp32] [--overwrite]
samestep export RUN|CHECKPOINT FOLDER --weights [--learner NAME] [--overwrite]

Writes a trained model, as fp32, or with --dtype bf16 in half the size. A recipe with a published format writes a folder
in that format, with the recipe's name in samestep.json. Of any other recipe, with --learner, or if the target is
a .safetensors file, the network of one learner is written to one safetensors file, under its own names, in the type it
was trained in unless --dtype is given. `samestep.load` and `init_from` read all of them.

--which       of a run: last, best (by the metric of the stage), or the number of a step (last)
--stage       of a run: the stage whose checkpoint is meant (the last one)
--learner     the learner whose network is written (model, or the only one)
--raw         the weights that were trained, also where the run averaged them
--weights     write LEARNER_step_N.pt for every learner, as a run with checkpoint.weights=true does
--recipe      the recipe, if it has moved, or neither ships with samestep nor was started by you before
--max_shard_size  of a published format: the largest size of a file (5GB)
--overwrite   replace a model that exists already"""
OPTIONS = ("which", "stage", "learner", "recipe", "dtype", "max_shard_size")
SWITCHES = ("overwrite", "raw", "weights")


def run(args: Sequence[str]) -> int:
    """Write a model."""
    if not args or "-h" in args or "--help" in args:
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
        overwrite="overwrite" in options,
    )
    _refuse_unfitting(options, weights="weights" in options)
    trained, target = _open(rest[0], options, raw="raw" in options), Path(rest[1])
    of_type = f" as {options['dtype']}" if "dtype" in options else ""
    if "weights" in options:
        files = export_weight_files(trained, target, export_options.overwrite)
    elif trained.recipe.export and "learner" not in options and target.suffix != ".safetensors":
        trained.recipe.export(trained, target, export_options)
        files, of_type = sorted(target.glob("*.safetensors")), f" as {export_options.dtype}"
    else:
        if "max_shard_size" in options:
            raise UserError("--max_shard_size is for a recipe's published format; one learner is written to one file")
        files = [export_network(trained, target, options.get("dtype"), export_options.overwrite)]
    size = sum(file.stat().st_size for file in files) / 1e6
    print_text(f"exported {trained.source} to {target}: {size:,.1f} MB{of_type} in {len(files)} weight file(s)")
    return EXIT_DONE


def _open(source: str, options: Mapping[str, str], raw: bool) -> Trained:
    names = {name: options.get(name) for name in ("learner", "stage", "recipe")}
    return open_trained(source, options.get("which", "last"), averaged=not raw, **names)


def _refuse_unfitting(options: Mapping[str, str], weights: bool) -> None:
    extra = [name for name in ("dtype", "max_shard_size") if name in options]
    if weights and extra:
        raise UserError(f"--weights writes the weights as they were trained; leave out --{extra[0]}")
