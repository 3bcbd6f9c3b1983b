"""At least float32."""

import pytest
import torch

from samestep.models.wide import wide, wide_type


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_small_types_become_float32(dtype: torch.dtype) -> None:
    assert wide(torch.ones(2, dtype=dtype)).dtype == wide_type(dtype) == torch.float32


def test_float64_stays() -> None:
    values = torch.ones(2, dtype=torch.float64)
    assert wide(values) is values
