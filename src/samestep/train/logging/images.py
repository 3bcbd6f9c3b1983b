"""Images as the sinks take them."""

import numpy as np
import torch
from torch import Tensor

from samestep.core.errors import UserError

_CHANNELS = (1, 3, 4)


def image_array(name: str, image: Tensor) -> np.ndarray:
    """An image as uint8 [H, W, C]. Floats count from 0 to 1, and what lies outside is cut off; NaN is black.

    Where both the first and the last dimension could be channels, the first is taken.
    """
    image = torch.as_tensor(image).detach().cpu()
    image = image[None] if image.ndim == 2 else image
    if image.ndim != 3 or not (image.shape[0] in _CHANNELS or image.shape[2] in _CHANNELS):
        raise UserError(
            f"the image {name!r} has the shape {list(image.shape)}; log one of [C, H, W], [H, W, C] or [H, W] with "
            "1, 3 or 4 channels"
        )
    if image.is_floating_point():
        image = (image.nan_to_num(0.0).clamp(0, 1) * 255).round().to(torch.uint8)
    elif image.dtype != torch.uint8:
        raise UserError(f"the image {name!r} is of type {image.dtype}; log uint8, or floats from 0 to 1")
    return (image.permute(1, 2, 0) if image.shape[0] in _CHANNELS else image).contiguous().numpy()
