"""The loops that overhead.py compares: hand-written, samestep, Accelerate, HF Trainer and Fabric.

All train the same model. Each is a function that does a number of further steps, so that they can take turns.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from samestep import Bench, Config, Fit, Stage
from samestep.core.rundir import RunDir
from samestep.train.api.loop import Hook, run
from samestep.train.logging.console import Screen
from samestep.train.logging.metrics import MetricAccumulator
from samestep.train.logging.sinks import open_sinks
from samestep.train.record.config import Log
from samestep.train.record.progress import Progress
from samestep.train.record.stop import Stop
from samestep.train.session.hooks.metric_logging import LogMetrics
from samestep.train.session.hooks.stragglers import RankSpeeds
from samestep.train.session.hooks.validation import EpochSummary, Validate
from samestep.world.seeding import seed_everywhere
from samestep.world.world import World

RANKS, ROWS, SAMPLES, VOCABULARY = 2, 8, 4096, 256
LOG_EVERY, CLIP, RATE, DECAY, BETAS = 10, 1.0, 1e-3, 0.1, (0.9, 0.95)

Advance = Callable[[int], None]
"""Does this number of steps."""
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Job:
    """What all loops train, and for how long."""

    width: int
    layers: int
    length: int
    """Tokens per row; it determines the time of a step."""
    steps: int
    folder: Path

    def model(self) -> nn.Module:
        seed_everywhere(0)
        return Model(self.width, self.layers)

    def rows(self) -> "Tokens":
        return Tokens(torch.randint(VOCABULARY, (SAMPLES, self.length + 1), generator=torch.Generator().manual_seed(0)))

    def rate(self, step: int) -> float:
        """The learning rate of the cosine schedule, as a fraction of the peak."""
        return 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.steps)))


class Model(nn.Module):
    """A plain transformer over bytes; with labels it also returns the mean loss, as HF Trainer expects."""

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
    """Rows of a tensor as samples; all loaders here collate them in the same way."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Batch:
        row = self.tokens[index]
        return {"x": row[:-1], "labels": row[1:]}


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """A fused AdamW with no weight decay on norms, biases and embeddings."""
    no_decay = {id(p) for name, p in model.named_parameters() if p.ndim < 2 or name.startswith("embed")}
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in no_decay], "weight_decay": DECAY},
        {"params": [p for p in model.parameters() if id(p) in no_decay], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=RATE, betas=BETAS, fused=True)


def looping(epoch: Callable[[int], Iterable[Batch]], update: Callable[[Batch], Tensor]) -> Advance:
    """The usual loop around an update: over the epochs, reading the loss every `LOG_EVERY` steps."""

    def steps() -> Iterator[None]:
        step, losses = 0, []
        for number in count():
            for batch in epoch(number):
                loss = update(batch)
                step += 1
                if step % LOG_EVERY == 0:
                    losses.append(loss.item())
                yield

    remaining = steps()
    return lambda wanted: deque(islice(remaining, wanted), maxlen=0).clear()


def fresh(job: Job) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A DDP model and its optimizer, as in a hand-written script."""
    model = DistributedDataParallel(job.model(), gradient_as_bucket_view=True)
    return model, adamw(model.module)


def by_hand(job: Job, model: nn.Module, optimizer: torch.optim.Optimizer) -> Advance:
    """The loop one writes without a library."""
    schedule = LambdaLR(optimizer, job.rate)
    rows = job.rows()
    sampler: DistributedSampler = DistributedSampler(rows, shuffle=True, drop_last=True)
    loader = DataLoader(rows, ROWS, sampler=sampler)

    def epoch(number: int) -> Iterable[Batch]:
        sampler.set_epoch(number)
        return loader

    def update(batch: Batch) -> Tensor:
        loss = mean_loss(model(batch["x"]), batch["labels"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return looping(epoch, update)


class Pause(Stop):
    """Stops at a given step, in addition to whatever else the ranks agree on.

    Its clock stops while the other loops take their turns, since how often ranks exchange messages depends on the time
    of a step.
    """

    def __init__(self, world: World, progress: Progress) -> None:
        self.progress, self.stop_step, self.away = progress, 0, 0.0
        super().__init__(world, clock=lambda: time.monotonic() - self.away)
        self._paused_at = time.monotonic()

    def resume(self, wanted: int) -> None:
        """Do `wanted` more steps, starting now."""
        pause = time.monotonic() - self._paused_at
        self.stop_step += wanted
        self.away += pause
        self.progress.paused_seconds += pause

    def agreed(self) -> bool:
        if self.progress.step == self.stop_step:
            self._paused_at = time.monotonic()
            return True
        return super().agreed()


class _CallsNetwork(nn.Module):
    """The network of a learner as DDP's forward pass calls it; DDP is around functions of the network there."""

    def __init__(self, ddp: nn.Module) -> None:
        super().__init__()
        self.ddp = ddp

    def forward(self, x: Tensor) -> Any:
        return self.ddp(nn.Module.__call__, x)


class Samestep:
    """samestep's own loop, with everything a run has except validation and saves; it stops after each block."""

    def __init__(self, job: Job, world: World) -> None:
        adam: dict[str, Any] = {"learning_rate": RATE, "weight_decay": DECAY, "beta1": BETAS[0], "beta2": BETAS[1]}
        config = Config(batch_size=ROWS, max_steps=job.steps, clip=CLIP, log=Log(every=LOG_EVERY), **adam)
        rundir, screen = RunDir(job.folder / "samestep"), Screen(world.is_main)
        if world.is_main:
            rundir.path.mkdir()
        bench = Bench(world, config, rundir, "fit", screen)
        feed = bench.feed(job.rows(), count=lambda batch: {"nats": torch.full((len(batch["x"]),), job.length)})
        self.task = Fit(bench.learner(job.model()), feed, self.loss)
        self.progress = Progress(feed.order.steps_per_epoch)
        self.stop = Pause(world, self.progress)
        sinks = open_sinks(rundir, "fit", 0, config, {}) if world.is_main else []
        speeds = RankSpeeds(bench, self.progress, lambda kind, **details: None)
        log = LogMetrics(MetricAccumulator(world), sinks, screen, self.progress, LOG_EVERY, "rows", job.steps, speeds)
        validate = Validate(Stage("fit", lambda bench: self.task), self.task, log, screen, self.progress, world, config)
        self.every: list[Hook] = [log, validate, EpochSummary(MetricAccumulator(world), screen, validate)]

    @property
    def parts(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The replicated model and the optimizer inside."""
        replicated: Any = self.task.learner._parallel
        return _CallsNetwork(replicated._ddp), self.task.learner._optimizer.inner

    @staticmethod
    def loss(model: nn.Module, batch: Batch) -> Batch:
        labels = batch["labels"]
        each = cross_entropy(model(batch["x"]).flatten(0, 1), labels.flatten(), reduction="none")
        return {"nats": each.view(labels.shape).sum(1)}

    def advance(self, wanted: int) -> None:
        self.stop.resume(wanted)
        run(self.task, self.progress, self.every, self.stop)
        self.parts[1].grad_scale = None  # type: ignore[attr-defined]  # the hand-written loop clips in another way


def with_accelerate(job: Job) -> Advance:
    """As in its documentation. It steps a schedule once for each process, so the schedule is longer by that factor."""
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator(cpu=True)
    model = job.model()
    optimizer: Any = adamw(model)
    schedule: Any = LambdaLR(optimizer, lambda step: job.rate(step // RANKS))
    loader: Any = DataLoader(job.rows(), ROWS, shuffle=True, drop_last=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    def update(batch: Batch) -> Tensor:
        with accelerator.accumulate(model):
            loss = mean_loss(model(batch["x"]), batch["labels"])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        return loss

    return looping(lambda number: loader, update)


def with_fabric(job: Job) -> Advance:
    """As in its documentation."""
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=RANKS, strategy="ddp")
    fabric.launch()
    model: Any = job.model()
    model, optimizer = fabric.setup(model, adamw(model))
    schedule = LambdaLR(optimizer, job.rate)
    loader: Any = fabric.setup_dataloaders(DataLoader(job.rows(), ROWS, shuffle=True, drop_last=True))

    def update(batch: Batch) -> Tensor:
        loss = mean_loss(model(batch["x"]), batch["labels"])
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss

    return looping(lambda number: loader, update)


def with_trainer(job: Job) -> Advance:
    """HF Trainer owns its loop, so it runs in a thread that waits for its turn after the last step of each block."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    block_done, block_start = threading.Semaphore(0), threading.Semaphore(0)
    left, errors = [0], []

    class TakeTurns(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                block_done.release()
                block_start.acquire()

    def train() -> None:
        block_start.acquire()  # building the Trainer communicates with the other rank, so it waits for its turn too
        adam: dict[str, Any] = {"learning_rate": RATE, "weight_decay": DECAY, "max_grad_norm": CLIP}
        adam |= {"adam_beta1": BETAS[0], "adam_beta2": BETAS[1], "lr_scheduler_type": "cosine"}
        quiet: dict[str, Any] = {"logging_steps": LOG_EVERY, "save_strategy": "no", "disable_tqdm": True}
        try:
            settings = TrainingArguments(
                str(job.folder), use_cpu=True, max_steps=job.steps, per_device_train_batch_size=ROWS, **adam, **quiet
            )
            Trainer(job.model(), settings, train_dataset=job.rows(), callbacks=[TakeTurns()]).train()
        except BaseException as error:
            errors.append(error)
            block_done.release()

    threading.Thread(target=train, daemon=True).start()

    def advance(wanted: int) -> None:
        left[0] = wanted
        block_start.release()
        block_done.acquire()
        if errors:
            raise errors[0]

    return advance


OTHERS = {
    "Accelerate": (["accelerate"], with_accelerate),
    "HF Trainer": (["transformers", "accelerate"], with_trainer),
    "Fabric": (["lightning_fabric"], with_fabric),
}
"""By name: the packages that a loop requires, and the function that makes it."""
