"""Pictures as the files that samples name: PNG, written here because no library for it is among the core ones."""

import struct
import zlib

import numpy as np
import torch
from torch import Tensor

from samestep.core.errors import UserError
from samestep.core.pages.html import PNG_SIGNATURE

MOST_SIDE = 768
"""Pixels of a side that are kept: of a larger image every n-th is taken."""
_CHANNELS = (1, 3, 4)
_PNG_COLOURS = {1: 0, 3: 2, 4: 6}


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


def png_file(image: np.ndarray) -> bytes:
    """An image, uint8 [H, W, C], as the content of a PNG file; a large one in fewer pixels."""
    every = -(-max(image.shape[:2]) // MOST_SIDE) or 1
    image = np.ascontiguousarray(image[::every, ::every])
    height, width, channels = image.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, _PNG_COLOURS[channels], 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b"")]
    return PNG_SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
