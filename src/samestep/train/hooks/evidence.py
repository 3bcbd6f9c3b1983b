"""What the runtime saw, recorded for `samestep verify`: a recipe cannot report better than it did.

One JSON line a learner's update and rank: which samples it took, a checksum of each row's data, each row's loss, a
fingerprint of every gradient, a hash of the parameters before and after, whether random numbers were drawn, and which
BatchNorm modules took part. Validation adds a line with its rows. A last line closes every step of the loop, with a
fingerprint of all that a checkpoint would hold.
"""

import hashlib
import json
import os
import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from samestep.checkpoint.state import RankStateful, Stateful, split_state
from samestep.core.records import JsonLines
from samestep.data import noise
from samestep.data.feed import MicroBatches
from samestep.data.loading import Batch
from samestep.parallel.wrap import full_tensor
from samestep.train.logging.metrics import Metrics
from samestep.train.task import Tick

_PROBE = noise.purpose("gradient probe")


class Recorder:
    """Writes this rank's evidence."""

    def __init__(self, path: Path, stage: str, counted: bool = True) -> None:
        """`counted`: whether this rank counts its share of the data; if not, another one records its rows."""
        self._counted = counted
        self._lines = JsonLines(path)
        self._stage = stage
        self._update: dict[str, dict[str, Any]] = {}
        self._generators: dict[str, object] = {}
        self._batch_norms: dict[str, set[str]] = {}  # by learner, those that the current update used

    def started(self, step: int, world_size: int) -> None:
        """A process begins at `step`."""
        self._lines.append(
            {"kind": "start", "stage": self._stage, "step": step, "world": world_size, "pid": os.getpid()}
        )

    def begin(self, learner: str, module: nn.Module) -> None:
        """A learner's update begins: nothing of it has been computed yet."""
        if learner not in self._batch_norms:
            self._batch_norms[learner] = _watch_batch_norms(module)
        self._batch_norms[learner].clear()
        self._generators = _generators()
        self._update[learner] = {"before": module_hash(module)}

    def rows(self, learner: str, micros: MicroBatches, rows: list[Mapping[str, Tensor]]) -> None:
        """The rows of this rank, filler left out."""
        micros = micros if self._counted else micros.all_filler()
        ids: list[list[int]] = []
        values: dict[str, list[float]] = {}
        for (start, stop), terms in zip(micros.spans, rows):
            ids += micros.ids[start:stop].tolist()
            for term, value in terms.items():
                values.setdefault(term, []).extend(value.detach()[: stop - start].tolist())
        self._update[learner] |= {"ids": ids, "rows": values, **_given(micros), **self._facts(learner)}

    def coupled_rows(self, learner: str, micros: MicroBatches, rows: Mapping[str, Tensor]) -> None:
        """The rows of a coupled loss, which every rank holds in full: each rank keeps those it was given."""
        micros = micros if self._counted else micros.all_filler()
        mine = [number for start, stop in micros.spans for number in range(start, stop)]
        values = {term: value.detach()[mine].tolist() for term, value in rows.items()}
        ids = micros.ids[mine].tolist()
        self._update[learner] |= {"ids": ids, "rows": values, **_given(micros), **self._facts(learner)}

    def _facts(self, learner: str) -> dict[str, Any]:
        """What the forward and backward passes did beside computing: it may explain why a row's loss changes."""
        now = _generators()
        return {
            "drew": [name for name, state in self._generators.items() if now[name] != state],
            "batch_norms": sorted(self._batch_norms[learner]),
        }

    def gradients(self, learner: str, module: nn.Module) -> None:
        """Norm of every parameter's gradient and its product with a fixed random vector; None where there is none."""
        prints: dict[str, list[float] | None] = {}
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                prints[name] = None if parameter.grad is None else _fingerprint(parameter.grad)
        self._update[learner]["gradients"] = prints

    def parameters(self, learner: str, module: nn.Module, micros: MicroBatches) -> None:
        """The hash of the module after the update; closes the update's line."""
        update = self._update.pop(learner)
        self._lines.append(
            {
                "kind": "update",
                "stage": self._stage,
                "learner": learner,
                "step": micros.step,
                "hash": module_hash(module),
                "norm": _norm(update["gradients"]),
                **update,
            }
        )

    def draw(self, purpose: str, step: int, ids: Tensor, position: int, tokens: Tensor, margins: Tensor) -> None:
        """Sampled tokens, each with the distance between the best two candidates."""
        self._lines.append(
            {
                "kind": "draw",
                "stage": self._stage,
                "purpose": purpose,
                "step": step,
                "position": position,
                "ids": ids.tolist(),
                "tokens": tokens.tolist(),
                "margins": margins.tolist(),
            }
        )

    def validation(self, step: int, ids: np.ndarray, figures: Mapping[str, float]) -> None:
        """What validation saw on this rank, and the agreed figures."""
        ids = ids if self._counted else ids[:0]
        row = {"kind": "validation", "stage": self._stage, "step": step, "ids": ids.tolist(), "figures": dict(figures)}
        self._lines.append(row)

    def returned(self, step: int) -> None:
        """The task is through with a step on this rank; nothing that needs the other ranks has happened since."""
        self._lines.append({"kind": "returned", "stage": self._stage, "step": step})

    def step(self, step: int, state: Mapping[str, Stateful], figures: Mapping[str, float]) -> None:
        """The end of a step of the loop: the state as a checkpoint would hold it, and this rank's validation figures.

        Whole numbers and text are the same on all ranks too, for of those a checkpoint holds rank 0's.
        """
        held = {name: _held(part) for name, part in state.items()}
        own = {name: part.rank_state() for name, part in state.items() if isinstance(part, RankStateful)}
        row = {"kind": "step", "stage": self._stage, "step": step, "state": held, "figures": dict(figures), "own": own}
        self._lines.append(row)


@dataclass(frozen=True)
class Returned:
    """Tells a rank that left a step early from those that wait in it; for the front of the loop's list."""

    recorder: Recorder

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """The task's step has returned."""
        self.recorder.returned(tick.step)


@dataclass(frozen=True)
class Witness:
    """Closes the evidence of every step of the loop; for the loop's list, before the save."""

    recorder: Recorder
    state: Mapping[str, Stateful]
    figures: Callable[[], Mapping[str, float]]
    """What validation gave at this step, on this rank."""

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """The step is over."""
        self.recorder.step(tick.step, self.state, self.figures())


def module_hash(module: nn.Module) -> str:
    """One hash over all parameters and buffers, in full."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(_bytes(full_tensor(tensor)))
    return digest.hexdigest()


def _generators() -> dict[str, object]:
    """The state of every generator that a rank has for itself, to be compared."""
    name, keys, *place = np.random.get_state()
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (name, np.asarray(keys).tobytes(), *place),
        "python": random.getstate(),
    }


def _watch_batch_norms(module: nn.Module) -> set[str]:
    """Where the names of BatchNorm modules will be found that have normalised rows by their micro-batch."""
    used: set[str] = set()

    def note(name: str, part: _BatchNorm) -> None:
        if part.training or part.running_mean is None:
            used.add(name)

    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm):
            part.register_forward_pre_hook(lambda part, inputs, name=name: note(name, part))
    return used


def _given(micros: MicroBatches) -> dict[str, Any]:
    """How the rows came: their checksums, the sizes of the micro-batches, the weights of the whole batch."""
    sizes = [stop - start for start, stop in micros.spans]
    data = [pair for batch, size in zip(micros.batches, sizes) for pair in _checksums(batch, size)]
    return {"data": data, "sizes": sizes, "weights": micros.weights}


def _checksums(batch: Batch, size: int) -> list[list[int]]:
    """A row's checksum and its number of values; the number tells a row that was padded to another length."""
    pairs = [[0, 0] for _ in range(size)]
    for name in sorted(set(batch) - {"ids", "live"}):
        values = batch[name].detach().cpu()[:size]
        for pair, row in zip(pairs, values):
            pair[0] = zlib.crc32(_bytes(row), pair[0])
            pair[1] += row.numel()
    return pairs


def _held(part: Stateful) -> dict[str, Any]:
    """A hash of a full state, and the fingerprints of its numbers."""
    plain, tensors = split_state({"": part.state_dict()})
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    prints = {}
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + _bytes(full_tensor(tensor)))
        if tensor.is_floating_point():
            prints[name.lstrip("/")] = _fingerprint(tensor)
    return {"hash": digest.hexdigest(), "prints": prints}


def _fingerprint(tensor: Tensor) -> list[float]:
    """The norm, and the product with a fixed random vector."""
    values = full_tensor(tensor).detach().cpu().double().flatten()
    probe = noise.uniform(_PROBE, torch.arange(len(values)), dtype=torch.float64) - 0.5
    return [float(values.norm()), float(values @ probe)]


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _norm(prints: Mapping[str, list[float] | None]) -> float:
    return float(np.sqrt(sum(found[0] ** 2 for found in prints.values() if found)))
