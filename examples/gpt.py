"""Train a small GPT on the bytes of a text, from scratch, and let it write at the end. Try it with

samestep train examples/gpt.py --nproc 2      # Python's documentation: four minutes of CPU time in all
samestep train examples/gpt.py --text my.txt --network.n_layers 6 --epochs 20 --prompt "Once upon a time"
samestep verify examples/gpt.py
"""

import math
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn

from samestep import (
    Batch,
    Bench,
    CausalConfig,
    CausalTransformer,
    Config,
    Fit,
    GenerationConfig,
    LocalGenerator,
    Recipe,
    Stage,
)

SHAPE = CausalConfig(d_model=96, n_layers=3, n_heads=4, mlp_hidden_size=256, vocab_size=256)
WRITING = GenerationConfig(max_new_tokens=250, temperature=0.7)


@dataclass(frozen=True)
class Gpt(Config):
    """Train a small GPT on bytes."""

    text: str = ""
    """A file of text, whose last tenth is for validation; empty: Python's documentation."""
    context: int = 256
    """Bytes that are read together."""
    network: CausalConfig = SHAPE
    """The shape of the network."""
    prompt: str = "The "
    """How the text that is written at the end begins."""
    writing: GenerationConfig = WRITING
    """How that text is sampled."""


def read(file: str) -> bytes:
    passages = dict.fromkeys("\n\n".join(topics.values()).split("\n\n"))  # each once, since topics quote each other
    return Path(file).read_bytes() if file else "\n\n".join(passages).encode()


def loss(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits, wanted = model(batch["tokens"][:, :-1]).transpose(1, 2), batch["tokens"][:, 1:]
    return {"nll": nn.functional.cross_entropy(logits, wanted, ignore_index=0, reduction="none").sum(1)}


def build(bench: Bench) -> Fit:
    config: Gpt = bench.config
    # The loss is a mean over bytes, also where a row is shorter; 0 is padding, since no text has this byte.
    options = {"pad": {"tokens": 0}, "count": lambda batch: {"nll": (batch["tokens"][:, 1:] != 0).sum(1)}}
    text = torch.tensor(list(read(config.text)))
    starts = range(0, len(text) - 1, config.context)  # a row begins with the last byte of the one before
    rows = [{"tokens": text[start : start + config.context + 1]} for start in starts]
    feed, held_out = bench.feed(rows[: -len(rows) // 10], **options), rows[-len(rows) // 10 :]
    return Fit(
        bench.learner(lambda: CausalTransformer(config.network)),
        feed,
        loss,
        validation=bench.evaluation_feed(held_out, **options),
        derive=lambda means: {**means, "bits_per_byte": means["nll"] / math.log(2)},
    )


def write(task: Fit, bench: Bench) -> None:
    """Sampled bytes are functions of the seed and their positions: the same on any number of ranks."""
    generator, prompt = LocalGenerator.of(bench, "write", bench.config.writing), bench.config.prompt
    with task.learner.inference() as network:
        written = generator(network, [list(prompt.encode())], torch.zeros(1, 2, dtype=torch.long), step=0)
    bench.screen.print(f"\n{prompt}{bytes(written.to_lists()[0]).decode(errors='replace')}\n")


tiny = {"network": {"d_model": 8, "n_layers": 2, "n_heads": 2, "mlp_hidden_size": 16}, "context": 32, "text": __file__}
small = {**tiny, "writing.max_new_tokens": 8, "global_batch_size": 10, "batch_size": 4, "max_steps": 8}
fast = {"optimizer": "muon", "learning_rate": 0.01, "warmup_ratio": 0.05}
default = {**fast, "global_batch_size": 8, "batch_size": 8, "epochs": 6}
stages = [Stage("gpt", build, validate=Fit.validate, best=("val/bits_per_byte", "min"), finish=write)]
recipe = Recipe(config=Gpt, stages=lambda config: stages, presets={"default": default, "verify": small})
