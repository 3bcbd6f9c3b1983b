"""Train on a stream: images in .tar shards, validated on rows that a function yields. Try it with

samestep train examples/stream.py
samestep train examples/stream.py --shards "/data/*.tar"    # of KEY.image (64 bytes) and KEY.digit (one character)
samestep verify examples/stream.py
"""

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Config, Fit, Recipe, Stage, augmented, stream

SHAPES = ["75557", "26227", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717"]
"""Five rows of three pixels each: 5 is 101."""


@dataclass(frozen=True)
class Digits(Config):
    """Classify digits that come as a stream."""

    shards: str = ""
    """The .tar files, such as "/data/*.tar"; empty: made here."""
    images: int = 4000
    """How many are made."""
    buffer: int = 500
    """How many images are shuffled together."""


def draw(count: int, seed: int) -> Iterator[tuple[Tensor, int]]:
    """Noisy images of 8 by 8 bytes, and their digits."""
    random = torch.Generator().manual_seed(seed)
    for _ in range(count):
        digit, top, left = (int(torch.randint(most, (), generator=random)) for most in (10, 4, 6))
        image = torch.randint(90, (8, 8), generator=random, dtype=torch.uint8)
        for y, row in enumerate(SHAPES[digit]):
            image[top + y, left : left + 3] += torch.tensor([160 * int(bit) for bit in f"{int(row):03b}"]).byte()
        yield image, digit


def write_shards(folder: Path, images: int, most: int = 1000) -> None:
    folder.mkdir()
    drawn = list(draw(images, seed=1))
    for first in range(0, images, most):
        with tarfile.open(folder / f"{first:06}.tar", "w") as tar:
            for number, (image, digit) in enumerate(drawn[first : first + most]):
                for name, content in (("image", image.numpy().tobytes()), ("digit", str(digit).encode())):
                    member = tarfile.TarInfo(f"{first + number:06}.{name}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def decode(row: dict[str, bytes]) -> Batch:
    image = torch.frombuffer(bytearray(row["image"]), dtype=torch.uint8).view(1, 8, 8)
    return {"image": image / 255, "digit": torch.tensor(int(row["digit"]))}


def brighter(row: Batch) -> Batch:  # draws as it likes: what it draws follows from the seed, the epoch and the row
    return {**row, "image": row["image"] * (0.7 + 0.6 * torch.rand(()))}


def held_out() -> Iterator[Batch]:
    return ({"image": image[None] / 255, "digit": torch.tensor(digit)} for image, digit in draw(500, seed=2))


def loss(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"nll": nn.functional.cross_entropy(model(batch["image"]), batch["digit"], reduction="none")}


def build(bench: Bench) -> Fit:
    if not bench.config.shards and bench.world.is_main and not bench.artifact("digits").exists():
        with bench.write_artifact("digits") as folder:
            write_shards(folder, bench.config.images)
    bench.world.share(None)  # the other ranks wait for the shards
    shards = bench.config.shards or f"{bench.artifact('digits')}/*.tar"
    layers = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)]
    feed = bench.feed(augmented(stream(shards, buffer=bench.config.buffer, decode=decode), brighter))
    return Fit(bench.learner(nn.Sequential(*layers)), feed, loss, validation=bench.evaluation_feed(stream(held_out)))


default = {"global_batch_size": 64, "batch_size": 64, "epochs": 6, "learning_rate": 0.01}
small = {"images": 43, "buffer": 20, "global_batch_size": 10, "batch_size": 4, "max_steps": 8}
stages = [Stage("train", build, validate=Fit.validate, best=("val/nll", "min"))]
recipe = Recipe(Digits, stages=lambda config: stages, presets={"default": default, "verify": small})
