"""Fine-tune a causal language model of Hugging Face with LoRA, and let it write at the end:

samestep train examples/finetune.py --model FOLDER_OR_NAME --texts my.txt --prompt "Dear"  # pip install "samestep[hf]"
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from samestep import Batch, Bench, Bucketed, Config, Fit, Lora, Recipe, Stage


@dataclass(frozen=True)
class Finetune(Config):
    """Fine-tune a causal language model."""

    model: str = "model"
    """A model of transformers: its folder, or its name on the hub."""
    texts: str = "texts.txt"
    """A file of texts with an empty line between them; every tenth is for validation."""
    prompt: str = "The"
    """How the text that is written at the end begins."""


def build(bench: Bench) -> Fit:
    config: Finetune = bench.config
    learner = bench.learner(lambda: AutoModelForCausalLM.from_pretrained(config.model, dtype="auto"), lora=Lora(rank=8))
    tokenizer, texts = AutoTokenizer.from_pretrained(config.model), Path(config.texts).read_text(encoding="utf-8")
    tokens = [torch.tensor(tokenizer(text).input_ids[:512]) for text in texts.split("\n\n") if text.strip()]
    rows = [{"tokens": row, "length": torch.tensor(len(row))} for row in tokens if len(row) > 1]
    train, options = [row for number, row in enumerate(rows) if number % 10], {"pad": {"tokens": 0}, "count": targets}
    feed = bench.feed(train, order=Bucketed([len(row["tokens"]) for row in train]), **options)
    return Fit(learner, feed, loss, validation=bench.evaluation_feed(rows[::10], **options))


def targets(batch: Batch) -> dict[str, Tensor]:
    return {"nll": batch["length"] - 1}  # the loss is a mean over tokens, whatever the rows' lengths


def loss(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits, wanted = model(batch["tokens"]).logits[:, :-1].float(), batch["tokens"][:, 1:]
    nll = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view_as(wanted)
    is_real = torch.arange(wanted.shape[1], device=wanted.device) < batch["length"][:, None] - 1
    return {"nll": torch.where(is_real, nll, 0.0).sum(1)}  # padding is on the right, where no real token looks


def finish(task: Fit, bench: Bench) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bench.config.model)
    with task.learner.inference() as model, bench.write_artifact("sample.txt") as path:
        prompt = tokenizer(bench.config.prompt, return_tensors="pt").to(bench.world.device)
        path.write_text(tokenizer.decode(model.generate(**prompt, max_new_tokens=40)[0]), encoding="utf-8")


stages = [Stage("finetune", build, validate=Fit.validate, best=("val/nll", "min"), finish=finish)]
small = {"global_batch_size": 5, "batch_size": 2, "max_steps": 4}
recipe = Recipe(config=Finetune, stages=lambda config: stages, presets={"verify": small})
