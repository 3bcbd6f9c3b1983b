"""The script of hf_trainer_before.py on any number of devices, resumable: samestep train hf_trainer_after.py"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from samestep import Batch, Bench, Config, Fit, Group, Recipe, Stage


@dataclass(frozen=True)
class Finetune(Config):
    """Fine-tune a causal language model."""

    model: str = "model"
    """A model of transformers: its folder, or its name on the hub."""
    texts: str = "texts.txt"
    """A file of texts with an empty line between them; the first 8 are for validation."""


def build(bench: Bench) -> Fit:
    config: Finetune = bench.config
    tokenizer, texts = AutoTokenizer.from_pretrained(config.model), Path(config.texts).read_text(encoding="utf-8")
    tokens = [torch.tensor(tokenizer(text, truncation=True, max_length=512).input_ids) for text in texts.split("\n\n")]
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    options = {"pad": {"input_ids": 0, "labels": -100}, "count": targets}
    learner = bench.learner(
        lambda: AutoModelForCausalLM.from_pretrained(config.model),
        groups={"*embed*": Group(decay=config.weight_decay)},  # as HF Trainer has it; samestep would not decay them
    )
    return Fit(learner, bench.feed(rows[8:], **options), loss, validation=bench.evaluation_feed(rows[:8], **options))


def targets(batch: Batch) -> dict[str, torch.Tensor]:
    return {"loss": (batch["labels"][:, 1:] != -100).sum(1)}  # the mean is taken over the tokens of the whole batch


def loss(model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
    logits, wanted = model(batch["input_ids"]).logits[:, :-1].float(), batch["labels"][:, 1:]
    return {"loss": cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view_as(wanted).sum(1)}


as_before = {"batch_size": 4, "global_batch_size": 8, "epochs": 3, "learning_rate": 1e-3, "schedule": "cosine"}
usual = {"weight_decay": 0.1, "beta2": 0.999, "checkpoint": {"keep_last": 2}}
recipe = Recipe(
    config=Finetune,
    stages=lambda config: [Stage("finetune", build, validate=Fit.validate, best=("val/loss", "min"))],
    presets={"default": as_before | usual, "verify": as_before | usual | {"batch_size": 3}},
)
