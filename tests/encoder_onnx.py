"""onnx/model.onnx of an encoder in a process with onnxruntime, and without samestep and torch."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")), reason='needs "samestep[onnx]"'
)
ELSEWHERE = """
import json, sys
sys.modules["samestep"] = sys.modules["torch"] = None
import numpy, onnxruntime
from tokenizers import Tokenizer
folder, max_length, batch_size, *texts = sys.argv[1:]
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
tokenizer.enable_truncation(int(max_length))
tokenizer.enable_padding()
session = onnxruntime.InferenceSession(f"{folder}/onnx/model.onnx", providers=["CPUExecutionProvider"])
found = []
for start in range(0, len(texts), int(batch_size)):
    rows = tokenizer.encode_batch(texts[start : start + int(batch_size)])
    tokens = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}
    found += session.run(["sentence_embedding"], {k: numpy.array(v) for k, v in tokens.items()})[0].tolist()
print(json.dumps(found))
"""


def onnx_vectors(folder: Path, texts: list[str], max_length: int, batch_size: int) -> torch.Tensor:
    """What onnxruntime makes of texts, with the folder's tokenizer."""
    command = [sys.executable, "-c", ELSEWHERE, str(folder), str(max_length), str(batch_size), *texts]
    return torch.tensor(json.loads(subprocess.run(command, check=True, capture_output=True, timeout=200).stdout))
