"""A diffusion model (DDPM) learns to draw digits, and shows what it draws while it learns. Try it with

samestep train examples/ddpm.py     # also --nproc 2; pictures: runs/ddpm-default-1/samples/denoise, samestep report
samestep verify examples/ddpm.py
"""

import math
from functools import partial

import torch
from torch import Tensor, nn

from samestep import Average, Batch, Bench, Config, Every, Fit, Recipe, Stage, noise, samples

DIGITS = ["75557", "26227", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717"]
"""Five rows of three pixels each: 5 is 101."""
TIMES, PIXELS = 100, torch.arange(64)  # of a picture of 8 x 8
KEPT = torch.linspace(0, 1.55, TIMES + 1, dtype=torch.float64).cos().square()
"""How much of the variance is still the image's: all of it at time 0, nearly nothing at the last."""
TIME, ADDED, DRAWN = noise.purpose("time"), noise.purpose("added"), noise.purpose("drawn")


def images() -> list[Batch]:
    """Every digit at every place, in pixels from -1 to 1."""
    glyphs = torch.tensor([[[2.0 * int(bit) - 1 for bit in f"{int(row):03b}"] for row in rows] for rows in DIGITS])
    places = [(left, 5 - left, top, 3 - top) for left in range(6) for top in range(4)]
    padded = [(digit, nn.functional.pad(glyphs[digit], place, value=-1)) for digit in range(10) for place in places]
    return [{"image": image.flatten(), "digit": torch.tensor(digit)} for digit, image in padded]


class Denoiser(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.first, self.about, self.last = nn.Linear(64, width), nn.Linear(18, width), nn.Linear(width, 64)
        blocks = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU()) for _ in range(5)]
        self.blocks = nn.ModuleList(blocks)

    def forward(self, image: Tensor, time: Tensor, digit: Tensor) -> Tensor:
        waves = (time[:, None] * torch.arange(8, device=time.device) * math.pi / TIMES).cos()
        about = torch.cat((waves, nn.functional.one_hot(digit, 10)), 1).to(image)
        x, about = self.first(image), self.about(about)
        for block in self.blocks:
            x = x + block(x + about)
        return self.last(x)  # a guess of the image without noise


def loss(net: nn.Module, batch: Batch, seed: int) -> dict[str, Tensor]:
    epoch, index = batch["ids"].split(1, dim=1)  # keys of noise: the same on any number of ranks
    time = 1 + noise.integers(TIMES, seed, TIME, epoch, index)
    added, kept = noise.normal(seed, ADDED, epoch, index, PIXELS.to(index)), KEPT.to(batch["image"])[time]
    guess = net(kept.sqrt() * batch["image"] + (1 - kept).sqrt() * added, time[:, 0], batch["digit"])
    return {"error": (guess - batch["image"]).square().mean(1)}


def build(bench: Bench) -> Fit:
    learner, rows = bench.learner(Denoiser()), images()  # validation: the same ones, under noise that is fixed
    feed, validation, average = bench.feed(rows * 20), bench.evaluation_feed(rows), Average(learner, decay=0.995)
    return Fit(learner, feed, partial(loss, seed=bench.config.seed), validation=validation, average=average)


def drawn(net: nn.Module, seed: int, number: Tensor) -> Tensor:
    """Images from nothing but noise, by number, whose last figure is the digit to draw."""
    image = noise.normal(seed, DRAWN, TIMES, number[:, None], PIXELS.to(number))
    for time in range(TIMES, 0, -1):
        now, then = KEPT[time].item(), KEPT[time - 1].item()
        clean = net(image, torch.full_like(number, time), number % 10)
        mean = (then**0.5 * (1 - now / then) * clean + (now / then) ** 0.5 * (1 - then) * image) / (1 - now)
        fresh = noise.normal(seed, DRAWN, time - 1, number[:, None], PIXELS.to(number))
        image = mean + ((1 - now / then) * (1 - then) / (1 - now)) ** 0.5 * fresh
    return image


def draw(task: Fit, bench: Bench) -> None:
    """A picture with a column for each digit: drawn by all ranks, written by rank 0."""
    with task.weights_in_use(), task.learner.inference() as net:
        tiles = drawn(net, bench.config.seed, torch.arange(50, device=bench.world.device)).view(5, 10, 8, 8)
    framed = nn.functional.pad((tiles.cpu().float() + 1) / 2, (1, 1, 1, 1), value=0.5).clamp(0, 1)
    picture = nn.functional.interpolate(framed.transpose(1, 2).reshape(1, 1, 50, 100), scale_factor=6)[0, 0]
    bench.log_samples("digits", samples.Image(picture))


stage = Stage(
    "denoise", build, Fit.validate, ("val/error", "min"), draw, hooks=lambda *made: [Every(500, lambda _: draw(*made))]
)
default = {"global_batch_size": 64, "batch_size": 64, "epochs": 40, "learning_rate": 0.003, "weight_decay": 0.0}
small = {"global_batch_size": 10, "batch_size": 4, "max_steps": 8}
recipe = Recipe(config=Config, stages=lambda config: [stage], presets={"default": default, "verify": small})
