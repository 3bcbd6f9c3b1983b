"""A trained encoder as onnx/model.onnx, by torch's own exporter.

Its inputs are `input_ids` and `attention_mask` [rows, length]. `last_hidden_state` [rows, length, width] is what
sentence-transformers reads with backend="onnx", which pools it itself; `sentence_embedding` [rows, dim] is the vector
after pooling and all that follows. What onnxruntime computes from the file is compared with the network.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.models.sentence_encoder import SentenceEncoder

FILE = "onnx/model.onnx"
BOUND = 1e-5
"""The largest difference between onnxruntime and the network, as a part of the network's largest number."""
_NEEDED = ("onnx", "onnxscript", "onnxruntime")
_INPUTS, _OUTPUTS = ("input_ids", "attention_mask"), ("last_hidden_state", "sentence_embedding")
_LONGEST = 512
"""Tokens of the longest text that is compared."""


class _Outputs(nn.Module):
    """An encoder that gives both outputs."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder.tokens_and_vectors(input_ids, attention_mask)


def require_onnx() -> None:
    """Refuse where a package is missing."""
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise UserError(f'Install {missing[0]} for --onnx, with: pip install "samestep[onnx]"')


def write_onnx(folder: Path, encoder: SentenceEncoder, max_length: int) -> None:
    """Write the file into a folder, and refuse if it does not compute what the encoder does. The encoder is in float32
    on the CPU, with its weights."""
    outputs = _Outputs(encoder).eval()
    sample = _random_texts(encoder, 2, min(7, max_length))
    axes = {0: "rows", 1: "length"}
    file = folder / FILE
    file.parent.mkdir()
    with _quiet(), torch.no_grad():
        try:
            program = torch.onnx.export(
                outputs,
                sample,
                dynamo=True,
                input_names=_INPUTS,
                output_names=_OUTPUTS,
                dynamic_shapes=(axes, axes),
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            name = type(encoder.transformer).__name__
            raise UserError(f"Leave out --onnx: torch cannot export {name} ({str(error).splitlines()[0]}).") from error
        assert program is not None
        program.save(file)
    _compare(file, outputs, max_length)


def _compare(file: Path, outputs: _Outputs, max_length: int) -> None:
    """Refuse a file that gives other numbers than the network, on random texts of several lengths, some of them with
    padding."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    longest = min(max_length, _LONGEST)
    for rows, length in ((1, 1), (1, min(9, longest)), (3, min(16, longest)), (5, longest)):
        texts = _random_texts(outputs.encoder, rows, length)
        with torch.no_grad():
            wanted = outputs(*texts)
        found = session.run(_OUTPUTS, {name: value.numpy() for name, value in zip(_INPUTS, texts, strict=True)})
        for name, right, other in zip(_OUTPUTS, wanted, map(torch.from_numpy, found), strict=True):
            if name == _OUTPUTS[0]:  # what stands at padding may be anything
                right, other = (tokens[texts[1] > 0] for tokens in (right, other))
            difference = float((other - right).abs().max() / right.abs().max())
            if not difference <= BOUND:
                raise UserError(
                    f"Leave out --onnx: for {rows} texts of up to {length} tokens onnxruntime's {name} differs from "
                    f"the network's by {difference:.1e} of its largest number; {BOUND:.0e} is allowed."
                )


def _random_texts(encoder: SentenceEncoder, rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Tokens and mask of texts whose lengths differ; the first has no padding."""
    generator = torch.Generator().manual_seed(rows * 10_000 + length)
    ids = torch.randint(encoder.config.vocab_size, (rows, length), generator=generator)
    lengths = torch.randint(1, length + 1, (rows,), generator=generator)
    lengths[0] = length
    return ids, (torch.arange(length) < lengths[:, None]).long()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says of libraries that are not needed here, and of its own insides."""
    logger: Any = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
