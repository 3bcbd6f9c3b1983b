"""What a few samples hold, in a form that can be compared after a resume.

Everything exact (whole numbers, text, names, shapes) goes into one hash. Floats go into two figures instead, which are
compared with a tolerance: rows that are computed as they are read may differ in the last bits on another processor or
with another number of threads, and are the same data all the same.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep.core.records import Json

TOLERANCE = 1e-5
"""How far figures of floats may be apart, as a part of their norm."""
_BLOCK = 1 << 16
_STRIDE = 0x9E3779B97F4A7C15  # 2^64 times the golden ratio: its multiples fill the range evenly


@dataclass(frozen=True)
class RowDigest:
    """What samples hold."""

    sha256: str
    """Of all that is exact."""
    norm: float
    """The Euclidean norm of all floats."""
    product: float
    """The product of all floats with fixed weights: it changes when floats change places."""

    def same_as(self, other: "RowDigest") -> bool:
        """Whether both are of the same samples."""
        room = TOLERANCE * max(self.norm, other.norm)
        near = abs(self.norm - other.norm) <= room and abs(self.product - other.product) <= room
        return self.sha256 == other.sha256 and near

    def to_json(self) -> dict[str, Json]:
        """For the run directory."""
        return asdict(self)


def digest_of(samples: Iterable[Any]) -> RowDigest:
    """The digest of samples: tensors, arrays, numbers, text, lists and dicts of these; of all else only the type."""
    taken = _Taken()
    for sample in samples:  # one after the other: they need not be in memory together
        taken.add(sample)
    taken.close()
    return RowDigest(taken.exact.hexdigest(), math.sqrt(taken.squares), taken.product)


class _Taken:
    """A digest in the making."""

    def __init__(self) -> None:
        self.exact = hashlib.sha256()
        self.squares = self.product = 0.0
        self._weights = _weights(np.arange(1, _BLOCK + 1))
        self._block, self._filled, self._blocks = np.empty(_BLOCK), 0, 0

    def add(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray | np.generic):
            self._array(np.asarray(value))
        elif isinstance(value, Mapping):
            self._note("dict", len(value))
            for key in sorted(value, key=lambda key: (type(key).__name__, repr(key))):
                self._note(type(key).__name__, repr(key))
                self.add(value[key])
        elif isinstance(value, list | tuple):
            self._sequence(value)
        elif isinstance(value, float):
            self._array(np.asarray(value))
        elif value is None or isinstance(value, bool | int | complex | str | bytes):
            self._note(type(value).__name__, repr(value))
        else:
            self._note("unknown", type(value).__qualname__)

    def _sequence(self, values: list | tuple) -> None:
        """Lists of one kind of number are long at times, so they are taken as a whole."""
        self._note("list", len(values))
        kinds = {type(value) for value in values}
        if kinds == {float}:
            self._array(np.array(values))
        elif kinds == {int}:
            self._note("int", repr(list(values)))
        else:
            for value in values:
                self.add(value)

    def _tensor(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            self._note("unknown", f"{tensor.dtype} {tuple(tensor.shape)}")
            return
        plain = tensor.detach().cpu()
        if plain.is_floating_point():
            self._note("dtype", plain.dtype)
            plain = plain.float() if plain.dtype.itemsize < 4 else plain  # numpy lacks some of torch's types
        self._array(plain.resolve_conj().resolve_neg().numpy())

    def _array(self, array: np.ndarray) -> None:
        self._note("array", f"{array.dtype} {array.shape}")
        if array.dtype.kind == "f":
            self._add_floats(array.reshape(-1))
        elif array.dtype.kind == "O":
            self.add(array.tolist())
        else:
            self.exact.update(np.ascontiguousarray(array).tobytes())

    def _add_floats(self, values: np.ndarray) -> None:
        while len(values):
            part, values = np.split(values, [_BLOCK - self._filled])
            self._block[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if self._filled == _BLOCK:
                self.close()

    def close(self) -> None:
        """Take in the floats that wait; they are taken a block at a time, for there may be few in each of many rows."""
        values, self._filled = self._block[: self._filled], 0
        finite = np.isfinite(values)
        if not finite.all():
            self._note("not finite", repr(values[~finite].tolist()))
            self.exact.update(np.packbits(finite).tobytes())
            values = np.where(finite, values, 0.0)
        self._blocks += 1
        self.squares += float(np.dot(values, values))
        self.product += float(_weights(np.array(self._blocks)) * np.dot(values, self._weights[: len(values)]))

    def _note(self, kind: str, what: object) -> None:
        text = f"{kind}:{what}".encode("utf-8", "surrogatepass")
        self.exact.update(f"{len(text)}:".encode() + text)


def _weights(places: np.ndarray) -> np.ndarray:
    """A fixed weight for each place, between -1 and 1."""
    return (places.astype(np.uint64) * np.uint64(_STRIDE)).astype(np.float64) * 2.0**-63 - 1.0
