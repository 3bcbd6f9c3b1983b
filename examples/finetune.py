"""Fine-tune a causal language model of Hugging Face with LoRA, and let it write at the end:

samestep train examples/finetune.py --model FOLDER_OR_NAME --texts my.txt --prompt "Dear"  # pip install "samestep[hf]"
samestep train examples/finetune.py --preset verify    # without a model at hand: a tiny random one reads this file
samestep verify examples/finetune.py
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from samestep import (
    Batch,
    Bench,
    Bucketed,
    CausalConfig,
    Config,
    Fit,
    GenerationConfig,
    LanguageModel,
    LocalGenerator,
    Lora,
    Recipe,
    Stage,
    UserError,
    completion_log_probs,
    open_language_model,
)

TINY = CausalConfig(d_model=16, n_layers=2, n_heads=2, mlp_hidden_size=32)


@dataclass(frozen=True)
class Finetune(Config):
    """Fine-tune a causal language model."""

    model: str | None = ""
    """A model of transformers (its folder, or its name on the hub) or a run; null: a tiny one of random weights."""
    texts: str = "texts.txt"
    """A file of texts with an empty line between them; every tenth is for validation."""
    prompt: str = "The"
    """How the text that is written at the end begins."""


def open_model(bench: Bench) -> LanguageModel:
    if bench.config.model == "":
        raise UserError("Name a model with --model FOLDER_OR_NAME, or try the recipe without one: --preset verify.")
    return open_language_model(bench.config.model, bench.world, shape=TINY)


def build(bench: Bench) -> Fit:
    model, texts = open_model(bench), Path(bench.config.texts).read_text(encoding="utf-8").split("\n\n")
    tokens = [torch.tensor(model.whole("", text)[:512]) for text in texts if text.strip()]
    rows = [{"tokens": row, "length": torch.tensor(len(row))} for row in tokens if len(row) > 1]
    train, options = [row for number, row in enumerate(rows) if number % 10], {"pad": {"tokens": 0}, "count": targets}
    feed = bench.feed(train, order=Bucketed([len(row["tokens"]) for row in train]), **options)
    learner = bench.learner(model.network, lora=Lora(rank=8))
    return Fit(learner, feed, loss, validation=bench.evaluation_feed(rows[::10], **options))


def targets(batch: Batch) -> dict[str, Tensor]:
    return {"nll": batch["length"] - 1}  # the loss is a mean over tokens, whatever the rows' lengths


def loss(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    tokens = batch["tokens"]
    is_real = torch.arange(tokens.shape[1], device=tokens.device) < batch["length"][:, None]
    found = completion_log_probs(model, tokens[:, :1], is_real[:, :1], tokens[:, 1:], is_real[:, 1:])
    return {"nll": -found.log_probs.sum(1)}  # logits of the whole batch are never in memory


def write(task: Fit, bench: Bench) -> None:
    model, ids = open_model(bench), torch.zeros(1, 2, dtype=torch.long)
    prompt = model.begin(bench.config.prompt)
    generator = LocalGenerator.of(
        bench, "write", GenerationConfig(max_new_tokens=40), eos=model.eos, pad=model.pad, forbidden=model.forbidden
    )
    with task.learner.inference() as network, bench.write_artifact("sample.txt") as path:
        written = model.spell(generator(network, [prompt], ids, step=0).to_lists()[0])
        path.write_text(f"{bench.config.prompt}{written}", encoding="utf-8")
    bench.screen.print(f"\n{bench.config.prompt}{written}\n")


stages = [Stage("finetune", build, validate=Fit.validate, best=("val/nll", "min"), finish=write)]
small = {"model": None, "texts": __file__, "global_batch_size": 5, "batch_size": 2, "max_steps": 4}
recipe = Recipe(config=Finetune, stages=lambda config: stages, presets={"verify": small})
