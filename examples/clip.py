"""CLIP: images of coloured digits find their captions among all of the global batch. Try it with

samestep train examples/clip.py
samestep train examples/clip.py --nproc 2
samestep verify examples/clip.py
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Config, Metrics, Recipe, Stage, Tick, WholeSet

GLYPHS = ["75557", "26227", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717"]
"""Five rows of three pixels each: 5 is 101."""
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
COLOURS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0), "white": (1, 1, 1)}
TOPS, LEFTS = {"top": 0, "middle": 3, "bottom": 7}, {"left": 0, "centre": 4, "right": 8}
WORDS = ["a", "on", "at", "the", *DIGITS, *COLOURS, *TOPS, *LEFTS]
SCENES = [scene for scene in product(COLOURS, DIGITS, COLOURS, TOPS, LEFTS) if scene[0] != scene[2]]


@dataclass(frozen=True)
class Clip(Config):
    """Learn which caption belongs to which image."""

    width: int = 64
    """Numbers in the vectors that are compared."""


class Pairs:
    """Images, and captions such as "a red seven on blue at the top left"."""

    def __init__(self, scenes: np.ndarray) -> None:
        self.scenes = scenes

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, number: int, random: np.random.Generator) -> dict[str, Tensor]:
        ink, digit, ground, top, left = SCENES[self.scenes[number]]
        caption = f"a {ink} {digit} on {ground} at the {top} {left}"
        drawn = np.array([[bit == "1" for bit in f"{int(row):03b}"] for row in GLYPHS[DIGITS.index(digit)]])
        image, column = np.full((12, 12, 3), COLOURS[ground], dtype=np.float32) / 2, LEFTS[left]
        image[TOPS[top] : TOPS[top] + 5, column : column + 3][drawn] = COLOURS[ink]
        image += 0.2 * random.standard_normal(image.shape, dtype=np.float32)  # other noise in each epoch
        words = torch.tensor([WORDS.index(word) for word in caption.split()])
        return {"image": torch.from_numpy(image).permute(2, 0, 1), "words": words}


class Towers(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, width // 2, 3, padding=1), nn.ReLU(), nn.Conv2d(width // 2, width, 3, stride=2)]
        self.image = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(25 * width, width))
        self.words, self.reader = nn.Embedding(len(WORDS), width), nn.GRU(width, width, batch_first=True)
        self.log_scale = nn.Parameter(torch.tensor(2.66))  # of 1 / 0.07

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        read, _ = self.reader(self.words(batch["words"]))
        image, text = nn.functional.normalize(self.image(batch["image"])), nn.functional.normalize(read[:, -1])
        return {"image": self.log_scale.exp() * image, "text": text}  # what is learned belongs in here, also a scale


def couple(rows: Mapping[str, Tensor], own: slice) -> dict[str, Tensor]:
    """Of the rows of the whole global batch, the loss of this rank's own."""
    truth = torch.arange(len(rows["text"]), device=rows["text"].device)[own]
    to_text = nn.functional.cross_entropy(rows["image"][own] @ rows["text"].T, truth, reduction="none")
    to_image = nn.functional.cross_entropy(rows["text"][own] @ rows["image"].T, truth, reduction="none")
    return {"contrast": (to_text + to_image) / 2}


def retrieval(rows: dict[str, Tensor]) -> dict[str, float]:
    scores, truth = rows["image"] @ rows["text"].T, torch.arange(len(rows["text"]))
    found = {"text_found": scores.argmax(1) == truth, "image_found": scores.argmax(0) == truth}
    shares = {name: float(is_right.double().mean()) for name, is_right in found.items()}
    return {**shares, "temperature": 1 / float(rows["image"].norm(dim=1).mean())}


class Contrast:
    def __init__(self, bench: Bench) -> None:
        self.learner = bench.learner(Towers(bench.config.width))
        scenes = np.random.default_rng(0).permutation(len(SCENES))
        self.feed, self.held_out = bench.feed(Pairs(scenes[300:])), bench.evaluation_feed(Pairs(scenes[:300]))
        self.length, self.state = self.feed.length, {"model": self.learner}

    def step(self, tick: Tick) -> Metrics:
        return self.learner.update_coupled(self.feed[tick.step], Towers.__call__, couple)

    def validate(self, tick: Tick) -> dict[str, float]:
        found = WholeSet(Towers.__call__, retrieval).evaluate(self.learner, self.held_out)
        return {f"val/{name}": value for name, value in found.items()}


stages = [Stage("contrast", Contrast, validate=Contrast.validate, best=("val/text_found", "max"))]
small = {"width": 6, "global_batch_size": 10, "batch_size": 4, "max_steps": 8}
default = {"global_batch_size": 64, "batch_size": 64, "epochs": 20, "learning_rate": 0.003}
recipe = Recipe(config=Clip, stages=lambda config: stages, presets={"default": default, "verify": small})
