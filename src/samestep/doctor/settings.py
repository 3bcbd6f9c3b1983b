"""What all runs of a proof have in common: the recipe's small preset, float64 on the CPU, everything recorded."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PRESET = "verify"
STEPS = 8


def proof_settings(
    config: Mapping[str, Any], preset: Mapping[str, Any], folder: Path, timeout: float
) -> dict[str, Any]:
    """The configuration of a proof's runs, as plain data; `preset` is what the recipe declares for it."""
    data = copy.deepcopy(dict(config))
    if data["max_steps"] is None and "epochs" not in preset:
        data["max_steps"] = STEPS
    steps = data["max_steps"] or STEPS
    data["global_batch_size"] = data["global_batch_size"] or uneven_batch(data["batch_size"])
    data["validate_every"] = data["validate_every"] or (steps // 2 if data["max_steps"] else 0)
    data.update(out=str(folder), evidence=True, compile=False, max_time=None, deterministic=False)
    data["distributed"].update(
        dtype="float64", device="cpu", backend="gloo", mixed_precision="none", timeout=float(timeout)
    )
    # Rows of figures that no save falls together with: an open window must survive a kill too.
    data["log"].update(every=3, quiet=True, tensorboard=False, wandb=False)
    data["checkpoint"].update(every_steps=2 if steps >= 6 else 1, every_minutes=0.0, weights=False)
    return data


def uneven_batch(micro: int) -> int:
    """A global batch of more than two micro-batches that neither 2 nor 3 ranks can share evenly."""
    batch = 2 * micro + 1
    while batch % 2 == 0 or batch % 3 == 0:
        batch += 1
    return batch


def other_micro(batch: int, micro: int) -> int | None:
    """Another micro-batch size that cuts `batch` differently, and unevenly where `micro` does not; None: there is none.

    Equal micro-batches would hide that they count alike whatever their size.
    """
    now = _pieces(batch, micro)
    others = {_pieces(batch, size): size for size in range(batch, 0, -1) if _pieces(batch, size) != now}
    if batch % now:
        return others.get(1)
    uneven = [size for pieces, size in others.items() if batch % pieces]
    return next(iter(uneven), next(iter(others.values()), None))


def _pieces(batch: int, micro: int) -> int:
    return -(-batch // micro)
