"""Dropout that does not depend on the number of ranks, for the networks of any library.

    learner = bench.learner(samestep.keyed_dropout(model))

torch draws a mask from the rank's own generator, so which elements a row loses depends on the rank that computes it and
on the rows before it. A `KeyedDropout` draws it from `samestep.noise` instead: the mask is a function of the seed, the
step, the update within the step, the sample, the module's name and the coordinates in the row.

The samples are those of the learner's current micro-batch. The learner sets them in one `MaskKey` that all dropouts of
its network share, before a forward pass, and keeps them until the backward pass is over: activation checkpointing
computes parts of the forward pass again, and must get the same masks. For the same reason a module that is called
twice in one forward pass gives the same mask twice.

All of this works under torch.compile: what changes from call to call is a tensor there, so nothing is compiled again,
and a compiled mask is cheaper than one that is computed operation by operation.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.data import noise
from samestep.data.loading import Batch
from samestep.parallel.build import without_wrappers

_MASK = noise.purpose("dropout mask")
_ELEMENTS = (nn.Dropout.forward,)
_CHANNELS = (nn.Dropout1d.forward, nn.Dropout2d.forward, nn.Dropout3d.forward)


class MaskKey:
    """What the masks of a micro-batch are drawn from; one for all dropouts of a learner's network."""

    def __init__(self, seed: int) -> None:
        self.rows: Tensor | None = None
        """An integer for each row of the micro-batch; None outside of an update."""
        self._seed, self._update = seed, 0
        self._step: int | None = None

    @contextmanager
    def updating(self, step: int) -> Iterator[None]:
        """Around one update of the learner. Those of one step are counted; a resumed run replays a whole step."""
        self._update = self._update + 1 if step == self._step else 0
        self._step = step
        try:
            yield
        finally:
            self.rows = None

    def set_batch(self, batch: Batch) -> None:
        """From now on the masks are those of this micro-batch."""
        assert self._step is not None, "masks are drawn inside an update"
        epoch, index = batch["ids"].unbind(1)
        high, low = noise.words(self._seed, _MASK, self._step, self._update, epoch, index)
        # Computed once, for all modules. 63 bits: no two rows of a run will ever share them.
        self.rows = (high >> 1 << 32) | low


class KeyedDropout(nn.Dropout):
    """Dropout by a mask that depends on the sample and on nothing else that the number of ranks could change.

    `channels` drops whole channels, the second dimension, as nn.Dropout1d, 2d and 3d do.
    """

    def __init__(self, p: float, inplace: bool = False, channels: bool = False, name: str = "") -> None:
        super().__init__(p, inplace)
        self.channels, self.name = channels, name
        self._number = 0
        self._key: MaskKey | None = None

    def attach(self, key: MaskKey, learner: str, name: str) -> None:
        """Become part of a learner's network, under the name that it has there."""
        self._key, self.name = key, name
        self._number = noise.purpose(f"{learner}/{name}")

    def forward(self, x: Tensor) -> Tensor:
        """`x` ([rows, ...]) with some elements zero and the others larger; as it is in evaluation mode."""
        if not self.training or self.p == 0:
            return x
        dropped = self._drop_channels(x) if self.channels else noise.dropout(x, self.p, self._number, self._rows(x))
        return x.copy_(dropped) if self.inplace else dropped

    def _drop_channels(self, x: Tensor) -> Tensor:
        rows = self._rows(x)
        kept = noise.dropout(x.new_ones(x.shape[:2]), self.p, self._number, rows)
        kept = kept.reshape(*kept.shape, *[1] * (x.dim() - 2))
        return torch.where(kept == 0, 0.0, x * kept)  # chosen: a dropped infinity must become 0, not NaN

    def _rows(self, x: Tensor) -> Tensor:
        """The rows' part of the key; refuses activations whose samples are not known."""
        if self._key is None:
            raise UserError(
                f"dropout {self.name!r} belongs to no learner and has no samples to key its mask by; make the "
                "learner from the network after keyed_dropout, or put the network into evaluation mode"
            )
        rows = self._key.rows
        if rows is None:
            raise UserError(
                f"dropout {self.name!r} is used in training mode outside of its learner's update, where no sample is "
                "known to key its mask by; put the network into evaluation mode there (as learner.inference() does; "
                "inside held_constant() call .eval() and later .train() on it)"
            )
        if x.dim() < 1 + self.channels or x.shape[0] != rows.shape[0]:
            raise UserError(
                f"dropout {self.name!r} got an activation of shape {tuple(x.shape)} in a micro-batch of "
                f"{rows.shape[0]} rows, and its first dimension must be those rows; let the network put the batch "
                'first, or set this dropout to 0 and use samestep.noise.dropout keyed by batch["ids"] in its place'
            )
        return rows

    def extra_repr(self) -> str:
        """Like that of torch's own modules."""
        return super().extra_repr() + (", channels=True" if self.channels else "")


def keyed_dropout(module: nn.Module) -> nn.Module:
    """`module` with a `KeyedDropout` in place of every nn.Dropout, nn.Dropout1d, 2d and 3d; for a learner's network.

    Dropout that a network has elsewhere stays: nn.AlphaDropout, attention's own `dropout_p`, calls of F.dropout. A
    warning at the first step names it.
    """
    if is_replaceable(module):
        return _keyed(module, "")
    for prefix, parent in list(module.named_modules()):
        for name, part in list(parent._modules.items()):
            if part is not None and is_replaceable(part):
                # One for each place, also where several share a module: each place has a mask of its own.
                setattr(parent, name, _keyed(part, f"{prefix}.{name}" if prefix else name))
    return module


def is_replaceable(module: nn.Module) -> bool:
    """Whether `keyed_dropout` replaces it: torch's own, or a class that inherits their forward."""
    return type(module).forward in _ELEMENTS + _CHANNELS


def has_keyed_dropout(network: nn.Module) -> bool:
    """Whether masks of a network are keyed by the rows of an update."""
    return any(isinstance(part, KeyedDropout) for part in network.modules())


def share_key(network: nn.Module, learner: str, seed: int) -> MaskKey | None:
    """One key for all keyed dropouts of a learner's network; None where it has none."""
    key = MaskKey(seed)
    found = [(name, part) for name, part in network.named_modules() if isinstance(part, KeyedDropout)]
    for name, part in found:
        part.attach(key, learner, without_wrappers(name))
    return key if found else None


def _keyed(part: nn.Module, name: str) -> KeyedDropout:
    assert isinstance(part, nn.modules.dropout._DropoutNd)
    keyed = KeyedDropout(part.p, part.inplace, type(part).forward in _CHANNELS, name)
    keyed.training = part.training
    return keyed
