"""Runs of the recipe in this process, what they log, and models in folders."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from language_toys import of_transformers
from player_folders import bytes_with_merges
from samestep.cli.main import main

SMALL = ("log.every=1", "log.quiet=true", "log.tensorboard=false", "checkpoint.background=false")


def train(folder: Path, preset: str, *settings: str, name: str = "run", code: int = 0) -> Path:
    """A run of some steps; its folder."""
    before = torch.get_default_dtype()  # a proof changes it; a fixture of a module would leave it so
    try:
        assert main(["train", "lens", "--preset", preset, f"out={folder}", f"name={name}", *SMALL, *settings]) == code
    finally:
        torch.set_default_dtype(before)
    return folder / name


def rows_of(run: Path, stage: str, has: str = "loss") -> list[dict[str, Any]]:
    """The rows of metrics of a stage that have this one."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["stage"] == stage and has in row]


def model_folder(
    folder: Path,
    kind: str = "llama",
    dtype: torch.dtype = torch.float32,
    inner: Tokenizer | None = None,
    **changes: Any,
) -> Path:
    """A tiny random model of transformers with a tokenizer; its weights are stored in `dtype`."""
    from transformers import PreTrainedTokenizerFast

    inner = inner or bytes_with_merges()
    names = {"bos_token": "<s>", "eos_token": "<|end|>"}
    PreTrainedTokenizerFast(tokenizer_object=inner, **names).save_pretrained(folder)
    attention = "eager" if kind == "gemma2" else "sdpa"
    network = of_transformers(kind, attention, **{"vocab_size": inner.get_vocab_size() + 3, **changes})
    network.to(dtype).save_pretrained(folder)
    return folder
