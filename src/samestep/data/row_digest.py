"""A digest of a few samples that can be compared after a resume.

Everything exact (whole numbers, text, names, shapes) goes into one hash. Floats go into two numbers instead, which are
compared with a tolerance: rows that are computed when they are read may differ in the last bits on another processor or
with another number of threads, and are still the same data.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep.core.json_files import Json

TOLERANCE = 1e-5
"""How much the numbers of two digests may differ, relative to the norm of the floats."""
_BLOCK = 1 << 16
_FEW = 16
"""Lists of up to this many entries have a field for each entry; all entries of longer ones share one field."""
_STRIDE = 0x9E3779B97F4A7C15  # 2^64 times the golden ratio: its multiples fill the range evenly


@dataclass(frozen=True)
class RowDigest:
    """A digest of samples."""

    sha256: str
    """The hash of everything exact."""
    floats: dict[str, list[float]]
    """For the floats in each field: their Euclidean norm, and their product with fixed weights, which changes with
    their order. By field, since a change in small numbers of one would be lost among large ones of another."""

    def same_as(self, other: "RowDigest") -> bool:
        """Whether both are digests of the same samples."""
        if self.sha256 != other.sha256 or self.floats.keys() != other.floats.keys():
            return False
        return all(_near(mine, other.floats[field]) for field, mine in self.floats.items())

    def to_json(self) -> dict[str, Json]:
        """The digest as JSON, for the run directory."""
        return asdict(self)


def digest_of(samples: Iterable[Any]) -> RowDigest:
    """The digest of samples: tensors, arrays, numbers, text, lists and dicts of these; of other values, the type."""
    builder = DigestBuilder()
    for sample in samples:
        builder.add(sample)
    return builder.digest()


def _near(mine: list[float], theirs: list[float]) -> bool:
    allowed = TOLERANCE * max(mine[0], theirs[0])
    return all(abs(a - b) <= allowed for a, b in zip(mine, theirs))


class DigestBuilder:
    """Collects samples into a digest, one after the other: they need not be in memory together."""

    def __init__(self) -> None:
        self._exact = hashlib.sha256()
        self._floats: dict[str, _FloatSummary] = {}
        self._field = ""

    def digest(self) -> RowDigest:
        """The digest of what was added so far."""
        floats = {field: found.summary() for field, found in sorted(self._floats.items())}
        return RowDigest(self._exact.hexdigest(), floats)

    def add(self, value: Any) -> None:
        """Add a sample, or a part of one."""
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray | np.generic):
            self._array(np.asarray(value))
        elif isinstance(value, Mapping):
            self._note("dict", len(value))
            for key in sorted(value, key=lambda key: (type(key).__name__, repr(key))):
                self._note(type(key).__name__, repr(key))
                outer, self._field = self._field, f"{self._field}/{key}"
                self.add(value[key])
                self._field = outer
        elif isinstance(value, list | tuple):
            self._sequence(value)
        elif isinstance(value, float):
            self._array(np.asarray(value))
        elif value is None or isinstance(value, bool | int | complex | str | bytes):
            self._note(type(value).__name__, repr(value))
        else:
            self._note("unknown", type(value).__qualname__)

    def _sequence(self, values: list | tuple) -> None:
        """Lists of one kind of number may be long, so they are added all at once."""
        self._note("list", len(values))
        kinds = {type(value) for value in values}
        if kinds == {float}:
            self._array(np.array(values))
        elif kinds == {int}:
            self._note("int", repr(list(values)))
        else:
            for number, value in enumerate(values):
                outer, self._field = self._field, f"{self._field}/{number if len(values) <= _FEW else '*'}"
                self.add(value)
                self._field = outer

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
            self._floats.setdefault(self._field, _FloatSummary(self._note)).add(array.reshape(-1))
        elif array.dtype.kind == "O":
            self.add(array.tolist())
        else:
            self._exact.update(np.ascontiguousarray(array).tobytes())

    def _note(self, kind: str, what: object) -> None:
        text = f"{kind}:{what}".encode("utf-8", "surrogatepass")
        self._exact.update(f"{len(text)}:".encode() + text)


class _FloatSummary:
    """The floats of one field in two numbers."""

    def __init__(self, note: Callable[[str, object], None]) -> None:
        """`note` adds what is exact about them to the hash: where they are not finite."""
        self._note, self._seen = note, 0
        self._squares = self._product = 0.0

    def add(self, values: np.ndarray) -> None:
        for start in range(0, len(values), _BLOCK):
            part = values[start : start + _BLOCK].astype(np.float64)
            finite = np.isfinite(part)
            if not finite.all():
                self._note("not finite", f"{np.flatnonzero(~finite).tolist()} {part[~finite].tolist()}")
                part = np.where(finite, part, 0.0)
            self._squares += float(np.dot(part, part))
            self._product += float(np.dot(part, _weights(np.arange(self._seen + 1, self._seen + 1 + len(part)))))
            self._seen += len(part)

    def summary(self) -> list[float]:
        """Their norm, and their product with fixed weights."""
        return [math.sqrt(self._squares), self._product]


def _weights(positions: np.ndarray) -> np.ndarray:
    """A fixed weight for each position, between -1 and 1."""
    return (positions.astype(np.uint64) * np.uint64(_STRIDE)).astype(np.float64) * 2.0**-63 - 1.0
