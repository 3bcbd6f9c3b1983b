"""The recipe that throughput.py trains: a causal language model on random tokens, of transformers or our own."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samestep import Batch, Bench, Config, Fit, Recipe, Stage

SIZES = {
    "tiny": {"width": 64, "layers": 2, "heads": 2, "mlp": 128, "vocabulary": 512},
    "110m": {"width": 768, "layers": 12, "heads": 12, "mlp": 2048, "vocabulary": 16000},
    "1b": {"width": 2048, "layers": 18, "heads": 16, "mlp": 5504, "vocabulary": 32000},
}
"""With separate embedding and head: 110 million and 1.04 billion parameters."""


@dataclass(frozen=True)
class Throughput(Config):
    """A language model on random tokens."""

    network: Literal["hf", "own"] = "hf"
    """Llama of transformers, or our own transformer."""
    size: str = "tiny"
    """tiny, 110m or 1b."""
    length: int = 64
    """Tokens in a row."""


def network(kind: str, size: str, length: int) -> nn.Module:
    shape = SIZES[size]
    if kind == "own":
        from samestep.models.transformer import Transformer, TransformerConfig

        sizes = {"d_model": shape["width"], "n_layers": shape["layers"], "n_heads": shape["heads"]}
        sizes |= {"mlp_hidden_size": shape["mlp"], "vocab_size": shape["vocabulary"], "max_sequence_length": length}
        return Transformer(TransformerConfig(**sizes, causal=True))
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": shape["width"], "num_hidden_layers": shape["layers"]}
    sizes |= {"num_attention_heads": shape["heads"], "intermediate_size": shape["mlp"]}
    sizes |= {"vocab_size": shape["vocabulary"], "max_position_embeddings": length}
    return LlamaForCausalLM(LlamaConfig(**sizes, use_cache=False))


def logits_of(output: object) -> Tensor:
    return output if isinstance(output, Tensor) else output.logits  # type: ignore[attr-defined]


class RandomTokens(torch.utils.data.Dataset):
    """Rows of random tokens."""

    def __init__(self, rows: int, length: int, vocabulary: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(vocabulary, (rows, length + 1), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Batch:
        return {"input_ids": self.tokens[index, :-1], "labels": self.tokens[index, 1:]}


def build(bench: Bench) -> Fit:
    config: Throughput = bench.config

    def loss(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        logits = logits_of(model(batch["input_ids"]))
        nats = F.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten(), reduction="none")
        return {"nats": nats.view(batch["labels"].shape).sum(1)}

    def count(batch: Batch) -> dict[str, Tensor]:
        tokens = torch.full((len(batch["labels"]),), config.length)
        return {"nats": tokens, "tokens": tokens}

    rows = RandomTokens(2048, config.length, SIZES[config.size]["vocabulary"])
    learner = bench.learner(network(config.network, config.size, config.length))
    return Fit(learner, bench.feed(rows, count=count), loss)


recipe = Recipe(config=Throughput, stages=lambda config: [Stage("train", build, unit="tokens")])
