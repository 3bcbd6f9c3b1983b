"""What the training loop costs: samestep beside a hand-written DDP loop, Accelerate, HF Trainer and Fabric.

    python benchmarks/overhead.py                                 steps of about 20 ms and 200 ms
    python benchmarks/overhead.py --steps-ms 20 --rounds 80
    python benchmarks/overhead.py --breakdown                     also where samestep's own step spends its time

All train the same small transformer on the same rows with the same AdamW, clipping and cosine schedule, in the same
two CPU processes (one thread each) and the same process group. In every round each makes a short block of steps, in an
order that rotates, so that a slow moment of the machine hits all alike. A ratio is the median step time of the
hand-written loop over that of a contender (1.0: as fast as by hand); its interval is a paired bootstrap over rounds.
The others come with `pip install 'samestep[bench]'`; those that are missing are left out.
"""

import argparse
import gc
import importlib.util
import json
import math
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from samestep import Bench, Config, Fit, Stage
from samestep.core.rundir import RunDir
from samestep.launch.local import start
from samestep.train.cadence import EpochSummary, LogFigures, Validate
from samestep.train.config import Log
from samestep.train.console import Screen
from samestep.train.loop import Every, Progress, run
from samestep.train.metrics import Book
from samestep.train.recipe import Tick
from samestep.train.sinks import open_sinks
from samestep.train.stop import Stop
from samestep.world.seeding import seed_everywhere
from samestep.world.world import World

RANKS, ROWS, SAMPLES, VOCABULARY = 2, 8, 4096, 256
LOG_EVERY, WARM_UP, CLIP, RATE, DECAY, BETAS = 10, 5, 1.0, 1e-3, 0.1, (0.9, 0.95)
LIMIT = 0.97
"""What the lower end of samestep's interval has to reach."""

Advance = Callable[[int], None]
"""Makes so many steps."""


@dataclass(frozen=True)
class Job:
    """What all contenders train, and for how long."""

    width: int
    layers: int
    length: int
    """Tokens a row: what a step takes is set by it."""
    steps: int
    folder: Path

    def model(self) -> nn.Module:
        seed_everywhere(0)
        return Model(self.width, self.layers)

    def rows(self) -> "Tokens":
        return Tokens(torch.randint(VOCABULARY, (SAMPLES, self.length + 1), generator=torch.Generator().manual_seed(0)))

    def rate(self, step: int) -> float:
        """The cosine, as a multiple of the peak."""
        return 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.steps)))


class Model(nn.Module):
    """A plain transformer over bytes; with labels it returns the mean loss too, as HF Trainer wants it."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        hidden = self.embed(x)
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(hidden)
        return logits if labels is None else {"loss": mean_loss(logits, labels), "logits": logits}


class Tokens(Dataset):
    """Rows of a tensor as samples, which every loader here collates in the same way."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self.tokens[index]
        return {"x": row[:-1], "labels": row[1:]}


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """As a careful person writes it: fused, and no decay on norms, biases and embeddings."""
    spared = {id(p) for n, p in model.named_parameters() if p.ndim < 2 or n.startswith("embed")}
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in spared], "weight_decay": DECAY},
        {"params": [p for p in model.parameters() if id(p) in spared], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=RATE, betas=BETAS, fused=True)


def stepping(steps: Iterator[None]) -> Advance:
    """Runs a loop that yields after each step."""
    return lambda count: deque(islice(steps, count), maxlen=0).clear()


def by_hand(job: Job) -> Advance:
    """The loop one writes without a library."""
    model = DistributedDataParallel(job.model(), gradient_as_bucket_view=True)
    optimizer = adamw(model.module)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, job.rate)
    rows = job.rows()
    sampler: DistributedSampler = DistributedSampler(rows, shuffle=True, drop_last=True)
    loader = DataLoader(rows, ROWS, sampler=sampler)

    def loop() -> Iterator[None]:
        step, losses = 0, []
        for epoch in range(job.steps):
            sampler.set_epoch(epoch)
            for batch in loader:
                loss = mean_loss(model(batch["x"]), batch["labels"])
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)
                step += 1
                if step % LOG_EVERY == 0:
                    losses.append(loss.item())
                yield

    return stepping(loop())


class Samestep:
    """The loop itself, with all that a run has but validation and saves; a block is a longer and longer task."""

    def __init__(self, job: Job, world: World) -> None:
        config = Config(
            batch_size=ROWS,
            max_steps=job.steps,
            learning_rate=RATE,
            clip=CLIP,
            weight_decay=DECAY,
            beta1=BETAS[0],
            beta2=BETAS[1],
            log=Log(every=LOG_EVERY),
        )
        rundir, screen = RunDir(job.folder / "samestep"), Screen(world.is_main)
        if world.is_main:
            rundir.path.mkdir()
        bench = Bench(world, config, rundir, "fit", screen)
        feed = bench.feed(job.rows(), count=lambda batch: {"nats": torch.full((len(batch["x"]),), job.length)})
        self.task = Fit(bench.learner(job.model()), feed, self.loss)
        self.stop, self.progress = Stop(world), Progress(feed.order.steps_per_epoch)
        sinks = open_sinks(rundir, "fit", 0, config, {}) if world.is_main else []
        stage = Stage("fit", lambda bench: self.task)
        log = LogFigures(Book(world), sinks, screen, self.progress, LOG_EVERY, "rows", job.steps)
        validate = Validate(stage, self.task, sinks, screen, self.progress, 0)
        self.every: list[Every] = [log, validate, EpochSummary(Book(world), screen, validate)]
        self.task.length = 0

    @staticmethod
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        labels = batch["labels"]
        each = cross_entropy(model(batch["x"]).flatten(0, 1), labels.flatten(), reduction="none")
        return {"nats": each.view(labels.shape).sum(1)}

    def advance(self, count: int) -> None:
        self.task.length += count
        run(self.task, self.progress, self.every, self.stop)


def with_accelerate(job: Job) -> Advance:
    """As its documentation shows it. Its scheduler steps once for every process, so the course is that much longer."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = job.model()
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: job.rate(step // RANKS))
    loader = DataLoader(job.rows(), ROWS, shuffle=True, drop_last=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    def loop() -> Iterator[None]:
        step, losses = 0, []
        while True:
            for batch in loader:
                with accelerator.accumulate(model):
                    loss = mean_loss(model(batch["x"]), batch["labels"])
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), CLIP)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                step += 1
                if step % LOG_EVERY == 0:
                    losses.append(loss.item())
                yield

    return stepping(loop())


def with_fabric(job: Job) -> Advance:
    """As its documentation shows it."""
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=RANKS, strategy="ddp")
    fabric.launch()
    model = job.model()
    model, optimizer = fabric.setup(model, adamw(model))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, job.rate)
    loader = fabric.setup_dataloaders(DataLoader(job.rows(), ROWS, shuffle=True, drop_last=True))

    def loop() -> Iterator[None]:
        step, losses = 0, []
        for epoch in range(job.steps):
            loader.sampler.set_epoch(epoch)
            for batch in loader:
                loss = mean_loss(model(batch["x"]), batch["labels"])
                fabric.backward(loss)
                fabric.clip_gradients(model, optimizer, max_norm=CLIP)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                step += 1
                if step % LOG_EVERY == 0:
                    losses.append(loss.item())
                yield

    return stepping(loop())


def with_trainer(job: Job) -> Advance:
    """HF Trainer owns its loop, so it runs in a thread that waits for its turn at the end of a block's last step."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    mine, theirs = threading.Semaphore(0), threading.Semaphore(0)
    left, errors = [0], []

    class Turns(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                mine.release()
                theirs.acquire()

    def train() -> None:
        theirs.acquire()  # building it talks to the other rank: that too waits for its turn
        try:
            torch.set_num_threads(1)
            settings = TrainingArguments(
                str(job.folder / "trainer"),
                use_cpu=True,
                per_device_train_batch_size=ROWS,
                max_steps=job.steps,
                learning_rate=RATE,
                lr_scheduler_type="cosine",
                max_grad_norm=CLIP,
                weight_decay=DECAY,
                adam_beta1=BETAS[0],
                adam_beta2=BETAS[1],
                logging_steps=LOG_EVERY,
                save_strategy="no",
            )
            Trainer(job.model(), settings, train_dataset=job.rows(), callbacks=[Turns()]).train()
        except BaseException as error:
            errors.append(error)
            mine.release()

    threading.Thread(target=train, daemon=True).start()

    def advance(count: int) -> None:
        left[0] = count
        theirs.release()
        mine.acquire()
        if errors:
            raise errors[0]

    return advance


OTHERS = {
    "Accelerate": ("accelerate", with_accelerate),
    "HF Trainer": ("transformers", with_trainer),
    "Fabric": ("lightning_fabric", with_fabric),
}


def block(world: World, advance: Advance, count: int) -> tuple[float, float]:
    """Milliseconds a step of `count` steps begun together: by the clock on the slower rank, and of CPU a rank."""
    world.barrier()
    began, used = time.perf_counter(), time.process_time()
    advance(count)
    mine = [(time.perf_counter() - began) / count * 1000, (time.process_time() - used) / count * 1000]
    took, cpu = zip(*world.gather(mine))
    return max(took), sum(cpu) / len(cpu)


def calibrated(world: World, job: Job, target: float) -> Job:
    """The job with rows so long that the hand-written loop takes about `target` milliseconds a step."""
    for _ in range(3):
        advance = by_hand(job)
        block(world, advance, 3)
        took = float(np.median([block(world, advance, 2)[0] for _ in range(5)]))
        job = Job(job.width, job.layers, max(4, round(job.length * target / took)), job.steps, job.folder)
    return job


def breakdown(world: World, ours: Samestep, count: int) -> dict[str, float]:
    """Milliseconds a step that each part of samestep's loop takes on rank 0."""
    spent: dict[str, float] = {}

    def clocked(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                spent[name] = spent.get(name, 0.0) + (time.perf_counter() - began) / count * 1000

        return timed

    learner, feed, update = ours.task.learner, ours.task.feed, ours.task.learner.update
    fetch = clocked("feed: order, rows, weights", feed.__getitem__)

    def step(tick: Tick) -> Any:
        return update(fetch(tick.step), ours.loss)

    learner._backward = clocked("update: forward, backward, all-reduce", learner._backward)  # type: ignore[method-assign]
    learner._apply = clocked("update: clip, check, AdamW, figures", learner._apply)  # type: ignore[method-assign]
    ours.task.step = step  # type: ignore[method-assign]
    ours.stop.agreed = clocked("agreement: stop and save", ours.stop.agreed)  # type: ignore[method-assign]
    for event in ours.every:
        event.fire = clocked("log: figures, sinks, screen", event.fire)  # type: ignore[method-assign]
    whole, _ = block(world, ours.advance, count)
    return {**spent, "the rest": whole - sum(spent.values()), "a step": whole}


def rank(target: float, rounds: int, with_breakdown: bool, folder: Path) -> None:
    """One of the two processes: measures one step size, and rank 0 leaves the times."""
    world = World.join("cpu")
    count = max(5, round(400 / target))
    steps = WARM_UP + (rounds + (10 if with_breakdown else 0)) * count
    width, layers = (64, 2) if target < 60 else (128, 6)
    job = calibrated(world, Job(width, layers, 32, steps, folder), target)
    ours = Samestep(job, world)
    contenders = {"by hand": by_hand(job), "samestep": ours.advance}
    contenders |= {name: make(job) for name, (package, make) in OTHERS.items() if importlib.util.find_spec(package)}
    for advance in contenders.values():
        block(world, advance, WARM_UP)
    gc.collect()
    gc.freeze()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(rounds):
        for name in order:
            times[name].append(block(world, contenders[name], count))
        order.append(order.pop(0))
    parts = breakdown(world, ours, 10 * count) if with_breakdown else {}
    if world.is_main:
        size = sum(p.numel() for p in job.model().parameters())
        about = f"{size:,} parameters, {ROWS} rows of {job.length} tokens a rank, {rounds} rounds of {count} steps"
        (folder / "result.json").write_text(json.dumps({"times": times, "parts": parts, "about": about}))
    world.barrier()
    os._exit(0)  # HF Trainer's thread and the others' exit hooks would fight over the group


def interval(hand: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """The 95% interval of the ratio of medians; rounds are drawn as pairs."""
    drawn = np.random.default_rng(0).integers(len(hand), size=(10_000, len(hand)))
    ratios = np.median(hand[drawn], axis=1) / np.median(other[drawn], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def measure(target: float, rounds: int, with_breakdown: bool) -> bool:
    """Run one step size, print its table, and say whether samestep's lower bound is high enough."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        workers = start(rank, RANKS, target, rounds, with_breakdown, folder, logs=folder / "logs", env=env)
        codes = workers.wait(timeout=1800)
        assert codes == [0] * RANKS, "\n".join(workers.output(r)[-4000:] for r in range(RANKS))
        found = json.loads((folder / "result.json").read_text())
    times = {name: np.array(values)[:, 0] for name, values in found["times"].items()}
    cpu = {name: float(np.median(np.array(values)[:, 1])) for name, values in found["times"].items()}
    hand = times["by hand"]
    print(f"\nsteps of {np.median(hand):.1f} ms (asked for {target:g}): {found['about']}")
    print(f"{'':12}{'median ms':>10}{'ratio':>8}   {'95% interval':18}{'CPU ms':>8}")
    for name, values in times.items():
        low, high = interval(hand, values)
        ratio = np.median(hand) / np.median(values)
        print(f"{name:12}{np.median(values):10.2f}{ratio:8.3f}   {low:.3f} to {high:.3f}{cpu[name]:11.2f}")
    for part, spent in found["parts"].items():
        print(f"    {part:40}{spent:9.3f} ms")
    return interval(hand, times["samestep"])[0] >= LIMIT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps-ms", type=float, nargs="+", default=[20, 200], help="step times to measure")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of one block per contender")
    parser.add_argument("--breakdown", action="store_true", help="also time the parts of samestep's loop")
    options = parser.parse_args()
    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores, {RANKS} ranks of 1 thread; load {os.getloadavg()[0]:.1f}"
    )
    for name, (package, _) in OTHERS.items():
        if not importlib.util.find_spec(package):
            print(f"{name} is left out: pip install 'samestep[bench]' brings it")
    fast = [measure(target, options.rounds, options.breakdown) for target in options.steps_ms]
    verdict = "yes" if all(fast) else "NO"
    print(f"\nlower bound of samestep at least {LIMIT} at every step size: {verdict}")


if __name__ == "__main__":
    main()
