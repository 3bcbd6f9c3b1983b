"""CLIP: images of coloured digits find their captions among all of the global batch. Try it with

samestep train examples/clip.py
samestep train examples/clip.py --nproc 2
samestep verify examples/clip.py
"""

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Config, Metrics, Recipe, Stage, Tick, WholeSet, augmented

ROWS = ["75557", "26227", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717"]
"""Of each digit five rows of three pixels: 5 is 101."""
DIGITS = dict(zip(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"], ROWS))
COLOURS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0), "white": (1, 1, 1)}
TOPS, LEFTS = {"top": 0, "middle": 3, "bottom": 7}, {"left": 0, "centre": 4, "right": 8}
WORDS = ["a", "on", "at", "the", *DIGITS, *COLOURS, *TOPS, *LEFTS]
SCENES = [scene for scene in product(COLOURS, DIGITS, COLOURS, TOPS, LEFTS) if scene[0] != scene[2]]


@dataclass(frozen=True)
class Clip(Config):
    """Learn which caption belongs to which image."""

    width: int = 64
    """Numbers in the vectors that are compared."""


def drawn(scene: tuple[str, ...]) -> Batch:
    """An image, and a caption such as "a red seven on blue at the top left"."""
    ink, digit, ground, top, left = scene
    image = torch.tensor(COLOURS[ground]).repeat(12, 12, 1) / 2
    glyph = torch.tensor([[bit == "1" for bit in f"{int(row):03b}"] for row in DIGITS[digit]])
    image[TOPS[top] : TOPS[top] + 5, LEFTS[left] : LEFTS[left] + 3][glyph] = torch.tensor(COLOURS[ink]) * 1.0
    noisy = image + 0.2 * torch.randn(image.shape)  # follows from seed, epoch and row
    caption = f"a {ink} {digit} on {ground} at the {top} {left}"
    return {"image": noisy.permute(2, 0, 1), "words": torch.tensor([WORDS.index(word) for word in caption.split()])}


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


def couple(rows: Batch, own: slice) -> dict[str, Tensor]:
    """Of the rows of the whole global batch, the loss of this rank's own."""
    truth = torch.arange(len(rows["text"]), device=rows["text"].device)[own]
    to_text = nn.functional.cross_entropy(rows["image"][own] @ rows["text"].T, truth, reduction="none")
    to_image = nn.functional.cross_entropy(rows["text"][own] @ rows["image"].T, truth, reduction="none")
    return {"contrast": (to_text + to_image) / 2}


def retrieval(rows: Batch) -> dict[str, float]:
    scores, truth = rows["image"] @ rows["text"].T, torch.arange(len(rows["text"]))
    text, image = ((scores.argmax(side) == truth).double().mean().item() for side in (1, 0))
    return {"text_found": text, "image_found": image, "temperature": 1 / rows["image"][0].norm().item()}


class Contrast:
    def __init__(self, bench: Bench) -> None:
        self.learner = bench.learner(Towers(bench.config.width))
        self.feed = bench.feed(augmented([scene for number, scene in enumerate(SCENES) if number % 7], drawn))
        self.held_out = bench.evaluation_feed(augmented(SCENES[::7], drawn))
        self.length, self.state = self.feed.length, {"model": self.learner}

    def step(self, tick: Tick) -> Metrics:
        return self.learner.update_coupled(self.feed[tick.step], lambda net, batch: net(batch), couple)

    def validate(self, tick: Tick) -> dict[str, float]:
        found = WholeSet(lambda net, batch: net(batch), retrieval).evaluate(self.learner, self.held_out)
        return {f"val/{name}": value for name, value in found.items()}


stages = [Stage("contrast", Contrast, validate=Contrast.validate, best=("val/text_found", "max"))]
small = {"width": 6, "global_batch_size": 10, "batch_size": 4, "max_steps": 8}
default = {"global_batch_size": 64, "batch_size": 64, "epochs": 20, "learning_rate": 0.003}
recipe = Recipe(config=Clip, stages=lambda config: stages, presets={"default": default, "verify": small})
