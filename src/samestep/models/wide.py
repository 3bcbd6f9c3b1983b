"""At least float32: what is summed, exponentiated or compared must not be rounded as bfloat16 is."""

import torch
from torch import Tensor


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """The type itself, or float32 where it has fewer bits."""
    return torch.promote_types(dtype, torch.float32)


def wide(values: Tensor) -> Tensor:
    """The values in at least float32."""
    return values.to(wide_type(values.dtype))
