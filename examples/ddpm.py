"""A diffusion model (DDPM) learns to draw digits, and shows what it draws while it learns. Try it with

samestep train examples/ddpm.py             # pictures: TensorBoard, runs/ddpm-default-1/artifacts/denoise/digits.png
samestep train examples/ddpm.py --nproc 2   # the same pictures
samestep verify examples/ddpm.py
"""

from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor, nn

from samestep import Average, Batch, Bench, Config, Every, Fit, Recipe, Stage, noise

DIGITS = ["75557", "26227", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717"]
"""Five rows of three pixels each: 5 is 101."""
TIMES, PIXELS = 100, torch.arange(64)
KEPT = torch.linspace(0, 1.55, TIMES + 1, dtype=torch.float64).cos().square()
"""How much of the variance is still the image's: all of it at time 0, nearly nothing at the last."""
TIME, ADDED, DRAWN = noise.purpose("time"), noise.purpose("added"), noise.purpose("drawn")


@dataclass(frozen=True)
class Diffusion(Config):
    """Learn to draw digits."""

    width: int = 32
    """Channels of the network."""


def images() -> list[Batch]:
    """Every digit at every place, in pixels from -1 to 1."""
    glyphs = torch.tensor([[[2.0 * int(bit) - 1 for bit in f"{int(row):03b}"] for row in rows] for rows in DIGITS])
    places = [(left, 5 - left, top, 3 - top) for left in range(6) for top in range(4)]
    padded = [(digit, nn.functional.pad(glyphs[digit], place, value=-1)) for digit in range(10) for place in places]
    return [{"image": image.flatten(), "digit": torch.tensor(digit)} for digit, image in padded]


class Denoiser(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.times, self.digits = nn.Embedding(TIMES + 1, width), nn.Embedding(10, width)
        self.first, self.last = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        reaches = [nn.Conv2d(width, width, 3, padding=reach, dilation=reach) for reach in (1, 2, 4, 2, 1)]
        self.blocks = nn.ModuleList(nn.Sequential(nn.GroupNorm(2, width), nn.SiLU(), reach) for reach in reaches)

    def forward(self, image: Tensor, time: Tensor, digit: Tensor) -> Tensor:
        about, x = (self.times(time) + self.digits(digit))[:, :, None, None], self.first(image.view(-1, 1, 8, 8))
        for block in self.blocks:
            x = x + block(x + about)
        return self.last(x).flatten(1)


def build(bench: Bench) -> Fit:
    def loss(net: nn.Module, batch: Batch) -> dict[str, Tensor]:
        seed, (epoch, index) = bench.config.seed, batch["ids"].split(1, dim=1)  # keys: the same on any number of ranks
        time = 1 + noise.integers(TIMES, seed, TIME, epoch, index)
        added = noise.normal(seed, ADDED, epoch, index, PIXELS.to(index))
        kept = KEPT.to(added)[time]
        guess = net(kept.sqrt() * batch["image"] + (1 - kept).sqrt() * added, time[:, 0], batch["digit"])
        return {"error": (guess - added).square().mean(1)}

    learner, rows = bench.learner(Denoiser(bench.config.width)), images()
    average = Average(learner, decay=0.995)
    return Fit(learner, bench.feed(rows * 10), loss, validation=bench.evaluation_feed(rows), average=average)


def drawn(net: nn.Module, seed: int, number: Tensor) -> Tensor:
    """Images from nothing but noise, by number, whose last figure is the digit to draw."""
    image = noise.normal(seed, DRAWN, TIMES, number[:, None], PIXELS.to(number))
    for time in range(TIMES, 0, -1):
        now, then = KEPT[time].item(), KEPT[time - 1].item()
        guess = net(image, torch.full_like(number, time), number % 10)
        clean = ((image - (1 - now) ** 0.5 * guess) / now**0.5).clamp(-1, 1)
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
    bench.log_image("digits", picture)
    with bench.write_artifact("digits.png") as path:
        Image.fromarray((255 * picture).round().byte().numpy()).save(path)


def hooks(task: Fit, bench: Bench) -> list[Every]:
    return [Every(500, lambda tick: draw(task, bench))]


stages = [Stage("denoise", build, validate=Fit.validate, best=("val/error", "min"), hooks=hooks, finish=draw)]
default = {"global_batch_size": 64, "batch_size": 64, "epochs": 60, "learning_rate": 0.003, "weight_decay": 0.0}
small = {"width": 4, "global_batch_size": 10, "batch_size": 4, "max_steps": 8}
recipe = Recipe(config=Diffusion, stages=lambda config: stages, presets={"default": default, "verify": small})
