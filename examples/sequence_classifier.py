"""Is a line of Python code, a comment or a docstring? A small network decides by its words, without the marks:

samestep train examples/sequence_classifier.py                # on Python's own modules
samestep train examples/sequence_classifier.py --layers 0     # a bag of words, to compare with
samestep verify examples/sequence_classifier.py
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_path
from zlib import crc32

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Bucketed, Config, Fit, Recipe, Stage, WholeSet

KINDS, WORDS = ("code", "comment", "docstring"), 8000


@dataclass(frozen=True)
class Lines(Config):
    """Classify lines of Python's own modules."""

    modules: int = 60
    """How many modules to read; every fifth is for validation."""
    layers: int = 3
    """Convolutions over neighbouring words; 0 is a bag of words."""
    width: int = 64
    """Width of the network."""


class Network(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(layers))
        self.head = nn.Linear(width, len(KINDS))

    def forward(self, words: Tensor) -> Tensor:
        x, is_word = self.words(words).transpose(1, 2), words[:, None] != 0
        for layer in self.layers:
            x = x + layer(x * is_word).relu()  # so that a row does not depend on how far it is padded
        return self.head((x * is_word).sum(2) / is_word.sum(2))


def rows(source: str) -> Iterator[Batch]:
    """The words of each line, without # and quotes around it, and the number of its kind."""
    may_have = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, may_have) and ast.get_docstring(node)]
    documented = {number for node in nodes for number in range(node.body[0].lineno, node.body[0].end_lineno + 1)}
    for number, line in enumerate(source.splitlines(), 1):
        kind = 2 if number in documented else int(line.lstrip().startswith("#"))
        if words := re.findall(r"\w+|[^\w\s]", line.strip(" \t#'\"")):
            yield {"words": [1 + crc32(word.encode()) % (WORDS - 1) for word in words], "kind": kind}  # 0 is padding


def f1_scores(found: dict[str, Tensor]) -> dict[str, float]:
    """2 hits / (lines of a kind + guesses of it), which is no mean over lines; and the mean over kinds."""
    f1 = {}
    for number, kind in enumerate(KINDS):
        is_kind, is_guess = found["kind"] == number, found["guess"] == number
        f1[f"f1_{kind}"] = float(2 * (is_kind & is_guess).sum() / (is_kind.sum() + is_guess.sum()).clamp(min=1))
    return {"f1": sum(f1.values()) / len(f1), **f1}


def build(bench: Bench) -> Fit:
    train, held_out = list[Batch](), list[Batch]()
    for number, module in enumerate(sorted(Path(get_path("stdlib")).glob("[!_]*.py"))[: bench.config.modules]):
        (train if number % 5 else held_out).extend(rows(module.read_text(encoding="utf-8")))
    rarity = len(train) / torch.tensor([row["kind"] for row in train]).bincount().double()

    def loss(network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        scores = network(batch["words"])
        return {"nll": nn.functional.cross_entropy(scores, batch["kind"], rarity.to(scores), reduction="none")}

    options = {"pad": {"words": 0}, "count": lambda batch: {"nll": rarity[batch["kind"]]}}  # a weighted mean
    feed = bench.feed(train, order=Bucketed([len(row["words"]) for row in train]), **options)
    learner = bench.learner(lambda: Network(bench.config.width, bench.config.layers))
    f1 = WholeSet(lambda net, batch: {"kind": batch["kind"], "guess": net(batch["words"]).argmax(1)}, f1_scores)
    return Fit(learner, feed, loss, validation=bench.evaluation_feed(held_out, **options), whole_set=f1)


small = {"modules": 5, "width": 8, "layers": 1, "global_batch_size": 10, "batch_size": 4, "max_steps": 8}
default = {"global_batch_size": 64, "batch_size": 64, "epochs": 4, "learning_rate": 2e-3, "early_stopping": 2}
stages = [Stage("classify", build, validate=Fit.validate, best=("val/f1", "max"))]
recipe = Recipe(config=Lines, stages=lambda config: stages, presets={"default": default, "verify": small})
