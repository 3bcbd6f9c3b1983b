"""What `samestep verify` compares, recorded by the runtime, so that a recipe cannot report anything else.

One JSON line per learner's update and rank: which samples it took, a checksum of each row's data, each row's loss, a
fingerprint of every gradient, a hash of the parameters before and after, whether random numbers were drawn, and which
BatchNorm modules normalised by their micro-batch. Validation adds a line with its
rows. The last line of every step of the loop has a fingerprint of all that a checkpoint would hold.
"""

import hashlib
import json
import os
import random
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from samestep.checkpoint.state import RankStateful, Stateful, split_state
from samestep.core.json_files import JsonLines
from samestep.data import noise
from samestep.data.feed import MicroBatches
from samestep.data.loading import Batch
from samestep.parallel.wrap import full_tensor
from samestep.train.learner.batch_norm import takes_micro_batch_statistics
from samestep.train.logging.metrics import MetricValues

_PROBE = noise.purpose("gradient probe")


class EvidenceRecorder:
    """Writes this rank's evidence. The keys of its JSON lines are read by `samestep verify`."""

    def __init__(self, path: Path, stage: str, counted: bool = True) -> None:
        """`counted`: whether this rank counts its share of the data; if not, another rank records the rows."""
        self._counted = counted
        self._lines: JsonLines | _NoLines = JsonLines(path)
        self._stage = stage
        self._update: dict[str, dict[str, Any]] = {}
        self._generators: dict[str, object] = {}
        self._batch_norms: dict[str, set[str]] = {}  # by learner, those that the current update used

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Nothing is recorded inside."""
        lines, self._lines = self._lines, _NoLines()
        try:
            yield
        finally:
            self._lines = lines

    def started(self, step: int, world_size: int) -> None:
        """A process begins at `step`."""
        self._lines.append(
            {"kind": "start", "stage": self._stage, "step": step, "world": world_size, "pid": os.getpid()}
        )

    def begin(self, learner: str, module: nn.Module) -> None:
        """A learner's update begins; nothing of it has been computed yet."""
        if learner not in self._batch_norms:
            self._batch_norms[learner] = _watch_batch_norms(module)
        self._batch_norms[learner].clear()
        self._generators = _generators()
        self._update[learner] = {"before": module_hash(module)}

    def rows(self, learner: str, micro_batches: MicroBatches, rows: list[Mapping[str, Tensor]]) -> None:
        """The rows of this rank, filler left out."""
        micro_batches = micro_batches if self._counted else micro_batches.all_filler()
        ids: list[list[int]] = []
        values: dict[str, list[float]] = {}
        for (start, stop), terms in zip(micro_batches.spans, rows):
            ids += micro_batches.ids[start:stop].tolist()
            for term, value in terms.items():
                values.setdefault(term, []).extend(value.detach()[: stop - start].tolist())
        self._update[learner] |= {
            "ids": ids,
            "rows": values,
            **_input_facts(micro_batches),
            **self._side_effects(learner),
        }

    def _side_effects(self, learner: str) -> dict[str, Any]:
        """What the forward and backward passes did besides computing: it may explain why a row's loss changes."""
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

    def parameters(self, learner: str, module: nn.Module, micro_batches: MicroBatches) -> None:
        """The hash of the module after the update; closes the update's line."""
        update = self._update.pop(learner)
        self._lines.append(
            {
                "kind": "update",
                "stage": self._stage,
                "learner": learner,
                "step": micro_batches.step,
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

    def validation(self, step: int, ids: np.ndarray, metrics: MetricValues) -> None:
        """The rows that this rank validated, and the metrics that all ranks agree on."""
        ids = ids if self._counted else ids[:0]
        row = {"kind": "validation", "stage": self._stage, "step": step, "ids": ids.tolist(), "metrics": dict(metrics)}
        self._lines.append(row)

    def returned(self, step: int) -> None:
        """The task's step has returned on this rank; nothing that needs the other ranks has happened since."""
        self._lines.append({"kind": "returned", "stage": self._stage, "step": step})

    def step(self, step: int, state: Mapping[str, Stateful], metrics: MetricValues) -> None:
        """The end of a step of the loop: the state as a checkpoint would hold it, and this rank's validation metrics.

        Integers and text must be the same on all ranks too, because a checkpoint holds those of rank 0.
        """
        held = {name: _state_facts(part) for name, part in state.items()}
        own = {name: part.rank_state() for name, part in state.items() if isinstance(part, RankStateful)}
        row = {"kind": "step", "stage": self._stage, "step": step, "state": held, "metrics": dict(metrics), "own": own}
        self._lines.append(row)


class _NoLines:
    """Takes what is not to be recorded."""

    def append(self, row: object) -> None:
        """Dropped."""


def module_hash(module: nn.Module) -> str:
    """One hash over all parameters and buffers, in full."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(_bytes(full_tensor(tensor)))
    return digest.hexdigest()


def _generators() -> dict[str, object]:
    """The state of every random generator of this rank, to be compared."""
    name, keys, *position = np.random.get_state()
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (name, np.asarray(keys).tobytes(), *position),
        "python": random.getstate(),
    }


def _watch_batch_norms(module: nn.Module) -> set[str]:
    """A set that will hold the names of BatchNorm modules that have normalised rows by their micro-batch."""
    used: set[str] = set()

    def add_if_used(name: str, part: nn.Module) -> None:
        if takes_micro_batch_statistics(part):
            used.add(name)

    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm):
            part.register_forward_pre_hook(lambda part, inputs, name=name: add_if_used(name, part))
    return used


def _input_facts(micro_batches: MicroBatches) -> dict[str, Any]:
    """The input of an update: checksums of the rows, sizes of the micro-batches, weights of the global batch."""
    sizes = [stop - start for start, stop in micro_batches.spans]
    floats = not micro_batches.is_produced  # what a step has computed is rounded differently from run to run
    data = [pair for batch, size in zip(micro_batches.batches, sizes) for pair in _checksums(batch, size, floats)]
    return {"data": data, "sizes": sizes, "weights": micro_batches.weights}


def _checksums(batch: Batch, size: int, floats: bool = True) -> list[list[int]]:
    """A row's checksum and its number of values; the number shows that a row was padded to another length."""
    pairs = [[0, 0] for _ in range(size)]
    for name in sorted(set(batch) - {"ids", "live"}):
        if not floats and batch[name].is_floating_point():
            continue
        values = batch[name].detach().cpu()[:size]
        for pair, row in zip(pairs, values):
            pair[0] = zlib.crc32(_bytes(row), pair[0])
            pair[1] += row.numel()
    return pairs


def _state_facts(part: Stateful) -> dict[str, Any]:
    """A hash of a full state, and the fingerprints of its numbers."""
    plain, tensors = split_state({"": part.state_dict()})
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    prints = {}
    for name, tensor in sorted(tensors.items()):
        full = full_tensor(tensor)
        digest.update(name.encode() + _bytes(full))
        if full.is_floating_point():
            prints[name.lstrip("/")] = _fingerprint(full)
    return {"hash": digest.hexdigest(), "prints": prints}


def _fingerprint(tensor: Tensor) -> list[float]:
    """The norm, and the product with a fixed random vector."""
    values = full_tensor(tensor).detach().cpu().double().flatten()
    return [float(values.norm()), float(values @ _probe(len(values).bit_length())[: len(values)])]


@cache
def _probe(bits: int) -> Tensor:
    """The first 2^`bits` numbers of a fixed random vector; kept, because drawing it takes longer than using it."""
    return noise.uniform(_PROBE, torch.arange(1 << bits), dtype=torch.float64) - 0.5


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _norm(prints: Mapping[str, list[float] | None]) -> float:
    return float(np.sqrt(sum(found[0] ** 2 for found in prints.values() if found)))
