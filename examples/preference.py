"""DPO with a frozen reference: a letter model learns words, then to prefer them to sorted letters (see stages)."""

import pydoc_data.topics
import re

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Config, Fit, Recipe, Stage, WholeSet

WORDS = sorted(set(re.findall("[a-z]{4,12}", " ".join(pydoc_data.topics.topics.values()).lower())))
PADDED = {"word": 0, "sorted": 0}  # 0 is also the beginning and the end of a word


def letters(word: str) -> Tensor:
    return torch.tensor([0, *(ord(letter) - 96 for letter in word), 0])


def pairs() -> list[Batch]:
    return [{"word": letters(word), "sorted": letters("".join(sorted(word)))} for word in WORDS]


def log_likelihood(net: nn.Module, word: Tensor) -> Tensor:
    scores = net(word[:, :-1]).log_softmax(-1).gather(2, word[:, 1:, None])[..., 0]
    is_real = (word[:, :-1] > 0) | (torch.arange(word.shape[1] - 1, device=word.device) == 0)
    return torch.where(is_real, scores, 0.0).sum(1)


def network() -> nn.Module:
    return nn.Sequential(nn.Embedding(27, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 27))


def imitate(bench: Bench) -> Fit:
    feed = bench.feed(pairs(), pad=PADDED)
    return Fit(bench.learner(network), feed, lambda net, batch: {"nll": -log_likelihood(net, batch["word"])})


def prefer(bench: Bench) -> Fit:
    policy, rows = bench.learner(network), pairs()
    reference = bench.frozen(policy)  # a copy of what the stage begins with, also after a resume

    def margin(net: nn.Module, batch: Batch) -> Tensor:
        with reference.inference() as before:
            ahead = log_likelihood(before, batch["word"]) - log_likelihood(before, batch["sorted"])
        return log_likelihood(net, batch["word"]) - log_likelihood(net, batch["sorted"]) - ahead

    def loss(net: nn.Module, batch: Batch) -> dict[str, Tensor]:
        gain = margin(net, batch)
        return {"dpo": -nn.functional.logsigmoid(0.1 * gain), "accuracy": (gain > 0).to(gain.dtype)}

    median = WholeSet(lambda net, batch: {"gain": margin(net, batch)}, lambda rows: {"median": rows["gain"].median()})
    feed, held_out = bench.feed(rows[::2], pad=PADDED), bench.evaluation_feed(rows[1::20], pad=PADDED)
    return Fit(policy, feed, loss, mix={"dpo": 1.0}, validation=held_out, whole_set=median)  # accuracy is only logged


stages = [Stage("imitate", imitate), Stage("prefer", prefer, start="imitate", validate=Fit.validate)]
small = {"global_batch_size": 7, "batch_size": 3, "max_steps": 4}
default = {"global_batch_size": 64, "batch_size": 64, "learning_rate": 3e-3}
recipe = Recipe(config=Config, stages=lambda config: stages, presets={"default": default, "verify": small})
