"""How fast rows are fed: augmented rows, .tar shards and an iterable, beside torch's DataLoader on the same data.

Images are JPEGs that are decoded as they are read; "light" are rows in memory with a transform that costs little.

Both sides have the same rows, the same transform, the same batch and the same loader processes, and shuffle as they do.
They take turns; a ratio above 1 means that the feed is faster. Time is that of six epochs, with the start of the
loader processes; CPU time is that of this process and of its loader processes. Run it with

python benchmarks/feeding.py                        # --workers 0 2 --runs 5 --rows 4000 --size 128
"""

import argparse
import io
import os
import random
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from samestep import augmented, stream
from samestep.data.augmented import takes_generator
from samestep.data.feed import Feed
from samestep.data.order_choice import choose_order
from samestep.world.world import World

BATCH, BUFFER, SHARDS, EPOCHS = 64, 300, 4, 6
Sample = dict[str, Tensor]
MEAN, STD = (torch.tensor(values).view(3, 1, 1) for values in ([0.48, 0.46, 0.41], [0.23, 0.22, 0.22]))


def crop_and_flip(sample: dict[str, Any]) -> Sample:
    """A random crop of 7/8 of the side, a flip, numbers from 0 to 1, a normalised mean."""
    image: Tensor = sample["image"]
    size = image.shape[-1] * 7 // 8
    top, left, flip = (int(torch.randint(most, ())) for most in (image.shape[-1] - size, image.shape[-1] - size, 2))
    part = image[:, top : top + size, left : left + size]
    part = part.flip(2) if flip else part
    return {"image": (part.float() / 255 - MEAN) / STD, "label": sample["label"]}


def pixels(row: dict[str, bytes]) -> Tensor:
    with Image.open(io.BytesIO(row["jpg"])) as image:
        return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())


def decode(row: dict[str, bytes]) -> Sample:
    return {"image": (pixels(row).float() / 255 - MEAN) / STD, "label": torch.tensor(int(row["cls"]))}


def encoded(rows: int, size: int) -> list[dict[str, bytes]]:
    """Smooth images as JPEG, as photographs are."""
    generator, made = np.random.default_rng(0), []
    for number in range(rows):
        coarse = Image.fromarray(generator.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        file = io.BytesIO()
        coarse.resize((size, size), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        made.append({"jpg": file.getvalue(), "cls": str(number % 10).encode()})
    return made


def write_shards(folder: Path, rows: list[dict[str, bytes]]) -> list[Path]:
    paths = []
    for shard in range(SHARDS):
        paths.append(folder / f"{shard}.tar")
        with tarfile.open(paths[-1], "w") as tar:
            for number, row in list(enumerate(rows))[shard::SHARDS]:
                for extension, content in row.items():
                    member = tarfile.TarInfo(f"{number:06}.{extension}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return paths


class Photos(Dataset):
    """JPEGs, decoded when they are read."""

    def __init__(self, files: list[dict[str, bytes]], transform: Callable[[Any], Any] | None = None) -> None:
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        sample = {"image": pixels(self.files[index]), "label": torch.tensor(int(self.files[index]["cls"]))}
        return self.transform(sample) if self.transform else sample


class Images(Dataset):
    """Images in memory."""

    def __init__(self, rows: int, size: int, transform: Callable[[Any], Any] | None = None) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (rows, 3, size, size), generator=generator, dtype=torch.uint8)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        sample = {"image": self.images[index], "label": torch.tensor(index % 10)}
        return self.transform(sample) if self.transform else sample


class Shuffled(IterableDataset):
    """What is written by hand for torch: a shuffle buffer, decoded rows."""

    def __init__(self, rows: Callable[[], Iterator[dict[str, bytes]]]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Sample]:
        buffer: list[dict[str, bytes]] = []
        for row in self.rows():
            if len(buffer) < BUFFER:
                buffer.append(row)
                continue
            place = random.randrange(BUFFER)
            row, buffer[place] = buffer[place], row
            yield decode(row)
        random.shuffle(buffer)
        yield from map(decode, buffer)


def of_shards(paths: list[Path]) -> Iterator[dict[str, bytes]]:
    """Every process reads shards of its own."""
    info = get_worker_info()
    for path in paths[info.id :: info.num_workers] if info else paths:
        with tarfile.open(path) as tar:
            row: dict[str, bytes] = {}
            for member in tar:
                row[member.name.partition(".")[2]] = tar.extractfile(member).read()  # type: ignore[union-attr]
                if len(row) == 2:
                    yield row
                    row = {}


def of_list(rows: list[dict[str, bytes]]) -> Iterator[dict[str, bytes]]:
    """Every process keeps every so manieth row."""
    info = get_worker_info()
    yield from (row for n, row in enumerate(rows) if info is None or n % info.num_workers == info.id)


def by_feed(data: Any, workers: int) -> int:
    order = choose_order(data, None, BATCH, seed=0)
    steps = order.steps_per_epoch * EPOCHS
    seed = 0 if takes_generator(data) else None
    feed = Feed(data, order, World.single(), micro_rows=BATCH, length=steps, workers=workers, row_seed=seed)
    return sum(len(batch["image"]) for step in range(steps) for batch in feed[step].batches)


def by_loader(data: Any, workers: int) -> int:
    shuffle = None if isinstance(data, IterableDataset) else True
    loader = DataLoader(data, BATCH, shuffle=shuffle, num_workers=workers, persistent_workers=workers > 0)
    return sum(len(batch["image"]) for _ in range(EPOCHS) for batch in loader)


def timed(work: Callable[[], int], rows: int) -> tuple[float, float]:
    """Seconds, and seconds of CPU."""
    began, cpu = time.perf_counter(), os.times()
    assert work() == rows
    now = os.times()
    return time.perf_counter() - began, sum(now[:4]) - sum(cpu[:4])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--size", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(1)
    files = encoded(options.rows, options.size)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_shards(Path(folder), files)
        pairs: dict[str, tuple[Any, Any]] = {
            "augmented": (augmented(Photos(files), crop_and_flip), Photos(files, crop_and_flip)),
            "light": (
                augmented(Images(options.rows, options.size), crop_and_flip),
                Images(options.rows, options.size, crop_and_flip),
            ),
            "tar": (stream(list(paths), buffer=BUFFER, decode=decode), Shuffled(lambda: of_shards(paths))),
            "iterable": (
                stream(lambda: iter(files), rows=len(files), buffer=BUFFER, decode=decode),
                Shuffled(lambda: of_list(files)),
            ),
        }
        print(f"{options.rows} rows of {options.size}x{options.size}, batch {BATCH}, load {os.getloadavg()[0]:.1f}")
        for name, (ours, theirs) in pairs.items():
            for workers in options.workers:
                found: list[list[tuple[float, float]]] = [[], []]
                for run in range(options.runs + 1):
                    for side in (0, 1) if run % 2 else (1, 0):
                        work = (by_feed, by_loader)[side]
                        took = timed(lambda: work(ours if side == 0 else theirs, workers), options.rows * EPOCHS)  # noqa: B023
                        if run:  # the first warms up
                            found[side].append(took)
                speed = [EPOCHS * options.rows / statistics.median(seconds for seconds, _ in side) for side in found]
                wall, cpu = (
                    statistics.median(b[kind] / a[kind] for a, b in zip(*found, strict=True)) for kind in (0, 1)
                )
                print(
                    f"{name:10} workers {workers}: feed {speed[0]:7,.0f} rows/s, DataLoader {speed[1]:7,.0f} rows/s; "
                    f"ratio {wall:.2f}, of CPU time {cpu:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
