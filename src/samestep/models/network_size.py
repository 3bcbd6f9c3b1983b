"""A network that a folder describes is no larger than the weights beside it: a config.json may say anything.

A million layers would be built for hours, even without memory. So parameters are counted while the network is built,
and it ends as soon as there are more than the files can hold.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from samestep.core.errors import UserError
from samestep.models.folder_weights import StoredTensor

_TIMES = 2
"""How often a file's numbers may be in a network; of a head that is tied to the embedding, twice."""
_PACKED = 16
"""The same for quantized weights, of which several are in one number."""
_PARTS = 8
"""How many parameters may be made of one tensor; some files have several of them joined."""
_FREE = 1 << 20
_BUFFERS = 1 << 28
"""Numbers that follow from settings, such as masks and positions."""


@contextmanager
def no_larger_than(stored: Mapping[str, StoredTensor], folder: Path, *, is_packed: bool = False) -> Iterator[None]:
    """Around building a network, on the meta device: refuse one with more parameters than are stored."""
    most = _FREE + sum(math.prod(tensor.shape) for tensor in stored.values()) * (_PACKED if is_packed else _TIMES)
    most_parameters = 1000 + _PARTS * len(stored)
    count = parameters = buffers = 0

    def add_parameter(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal count, parameters
        count += 0 if tensor is None else tensor.numel()
        parameters += 1
        if count > most or parameters > most_parameters:
            _refuse(folder, "weights", most if count > most else most_parameters, count > most)

    def add_buffer(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal buffers
        buffers += 0 if tensor is None else tensor.numel()
        if buffers > most + _BUFFERS:
            _refuse(folder, "masks and positions", most + _BUFFERS, True)

    hooks = [register_module_parameter_registration_hook(add_parameter)]
    hooks.append(register_module_buffer_registration_hook(add_buffer))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def check_size(
    build: Callable[[], object], stored: Mapping[str, StoredTensor], folder: Path, *, is_packed: bool = False
) -> None:
    """Build a network without memory, and refuse one that is larger than the weights in its folder."""
    with no_larger_than(stored, folder, is_packed=is_packed), torch.device("meta"):
        build()


def check_rows(vocabulary: int, stored: Mapping[str, StoredTensor], folder: Path) -> None:
    """Refuse a vocabulary that no stored tensor has the rows for."""
    largest = max((size for tensor in stored.values() for size in tensor.shape), default=0)
    if vocabulary > largest:
        raise UserError(
            f"Fix vocab_size in {folder / 'config.json'}, or use another folder: it is {vocabulary:,}, and no weights "
            f"there have more than {largest:,} rows."
        )


def _refuse(folder: Path, what: str, most: int, are_numbers: bool) -> None:
    raise UserError(
        f"Use another folder, or fix the sizes in {folder / 'config.json'}: it describes a network with more than "
        f"{most:,} {'numbers' if are_numbers else 'parts'} in its {what}, and the files there do not hold as many."
    )
