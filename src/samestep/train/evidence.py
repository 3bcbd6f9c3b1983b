"""What the runtime saw, recorded for `samestep verify`: a recipe cannot report better than it did.

One JSON line a learner's update and rank: which samples it took, each row's loss, a fingerprint of every gradient, and
a hash of the parameters afterwards. Validation adds a line with its rows.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samestep.core.records import JsonLines
from samestep.data import noise
from samestep.data.feed import Micros
from samestep.parallel.wrap import whole

_PROBE = noise.purpose("gradient probe")


class Recorder:
    """Writes this rank's evidence."""

    def __init__(self, path: Path, stage: str) -> None:
        self._lines = JsonLines(path)
        self._stage = stage
        self._update: dict[str, dict[str, Any]] = {}

    def started(self, step: int, world_size: int) -> None:
        """A process begins at `step`."""
        self._lines.append(
            {"kind": "start", "stage": self._stage, "step": step, "world": world_size, "pid": os.getpid()}
        )

    def rows(self, learner: str, micros: Micros, rows: list[Mapping[str, Tensor]]) -> None:
        """The rows of this rank, filler left out."""
        ids: list[list[int]] = []
        values: dict[str, list[float]] = {}
        for (start, stop), terms in zip(micros.spans, rows):
            ids += micros.ids[start:stop].tolist()
            for term, value in terms.items():
                values.setdefault(term, []).extend(value.detach()[: stop - start].tolist())
        self._update[learner] = {"ids": ids, "rows": values, "weights": micros.weights}

    def coupled_rows(self, learner: str, micros: Micros, rows: Mapping[str, Tensor]) -> None:
        """The rows of a coupled loss, which every rank holds whole: each rank keeps those it was given."""
        mine = [number for start, stop in micros.spans for number in range(start, stop)]
        values = {term: value.detach()[mine].tolist() for term, value in rows.items()}
        self._update[learner] = {"ids": micros.ids[mine].tolist(), "rows": values, "weights": micros.weights}

    def gradients(self, learner: str, module: nn.Module) -> None:
        """Norm of every parameter's gradient and its product with a fixed random vector; None where there is none."""
        prints: dict[str, list[float] | None] = {}
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                prints[name] = None
                continue
            gradient = whole(parameter.grad).detach().cpu().double().flatten()
            probe = noise.uniform(_PROBE, torch.arange(len(gradient)), dtype=torch.float64) - 0.5
            prints[name] = [float(gradient.norm()), float(gradient @ probe)]
        self._update[learner]["gradients"] = prints

    def parameters(self, learner: str, module: nn.Module, micros: Micros) -> None:
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
        row = {"kind": "validation", "stage": self._stage, "step": step, "ids": ids.tolist(), "figures": dict(figures)}
        self._lines.append(row)


def module_hash(module: nn.Module) -> str:
    """One hash over all parameters and buffers, whole."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(whole(tensor).detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _norm(prints: Mapping[str, list[float] | None]) -> float:
    return float(np.sqrt(sum(found[0] ** 2 for found in prints.values() if found)))
