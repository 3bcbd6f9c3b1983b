"""No bug: adapters in a language model, trained to prefer one text over another, against two frozen references.

These are the network without its adapters, and a teacher that is sharded.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import LlamaConfig, LlamaForCausalLM

from planted.parts import VERIFY, Batch, Small
from samestep import Bench, Fit, Lora, Recipe, Stage
from samestep.train.learner.ema import Average

SIZES = {"vocab_size": 17, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "initializer_range": 0.2}


def pairs(count: int) -> list[Batch]:
    """Sums that go around, as tokens, and the same backwards."""
    rows = [torch.arange(9) * (1 + number % 5) % 17 for number in range(count)]
    return [{"chosen": row, "rejected": row.flip(0)} for row in rows]


def llama() -> nn.Module:
    config = LlamaConfig(**SIZES, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False)
    return LlamaForCausalLM(config)


def margin(network: nn.Module, batch: Batch) -> Tensor:
    """How much more likely the chosen text of each row is."""
    chosen, rejected = (likelihood(network, batch[name]) for name in ("chosen", "rejected"))
    return chosen - rejected


def likelihood(network: nn.Module, tokens: Tensor) -> Tensor:
    logits = network(input_ids=tokens[:, :-1], use_cache=False).logits
    return logits.log_softmax(-1).gather(2, tokens[:, 1:, None]).sum((1, 2))


class Preferences:
    """DPO's loss, against each of two references."""

    def __init__(self, bench: Bench) -> None:
        self.policy = bench.learner(llama, lora=Lora(rank=4, alpha=8, dropout=0.1, targets=["q_proj", "down_proj"]))
        self.reference = bench.frozen(self.policy)
        self.teacher = bench.frozen(llama, name="teacher", shard=True)

    def __call__(self, policy: nn.Module, batch: Batch) -> dict[str, Tensor]:
        with self.reference.inference() as reference:
            before = margin(reference, batch)
        now = margin(policy, batch)
        with self.teacher.inference() as teacher:
            other = margin(teacher, batch)
        return {"dpo": -logsigmoid(0.1 * (now - before)) - logsigmoid(0.1 * (now - other))}


def align(bench: Bench) -> Fit:
    loss = Preferences(bench)
    validation = bench.evaluation_feed(pairs(5))
    average = Average(loss.policy, 0.9)
    return Fit(loss.policy, bench.feed(pairs(40)), loss, validation=validation, average=average)


# Made here, so that workers find this module, and with it transformers, imported.
stage = Stage("align", align, validate=Fit.validate)
recipe = Recipe(config=Small, stages=lambda config: [stage], presets={"verify": {**VERIFY, "max_steps": 4}})
