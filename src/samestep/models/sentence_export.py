"""Writing a trained encoder as a folder that `SentenceTransformer(path)` loads, without samestep."""

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samestep.core.errors import UserError
from samestep.core.json_files import replace_folder, write_json
from samestep.core.safe_files import open_new, temporary_folder, write_text
from samestep.models.hub_modules import MODULES
from samestep.models.older_names import write_older_names
from samestep.models.sentence_encoder import SentenceEncoder
from samestep.models.sentence_files import SETTINGS, TRANSFORMER_SETTINGS
from samestep.models.sentence_folder import EncoderSource
from samestep.models.sentence_onnx import require_onnx, write_onnx

_STOCK = "sentence_transformers.models."
"""The package of the modules in all versions so far; later ones have them elsewhere too."""


def write_encoder(
    folder: Path,
    source: EncoderSource,
    weights: Mapping[str, Tensor],
    card: str,
    *,
    prompts: Mapping[str, str] | None = None,
    dtype: torch.dtype = torch.float32,
    onnx: bool = False,
) -> None:
    """A new folder that sentence-transformers loads; it gets its name when all of it is written.

    `weights` are those of the network that `source` builds, by its own parameter names, `card` is its README.md.
    `source` is the one that was trained, with its projection if it has one. `prompts` replace its own. `dtype` is the
    type of the weights in the files. `onnx` adds onnx/model.onnx, in float32.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"Choose another folder, or remove it first; {folder} exists.")
    try:
        with temporary_folder(folder, private=False) as staging:
            write_encoder_files(staging, source, weights, card, prompts=prompts, dtype=dtype, onnx=onnx)
            replace_folder(staging, folder)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"Choose a folder with room; {folder} cannot be written ({reason}).") from error


def write_encoder_files(
    folder: Path,
    source: EncoderSource,
    weights: Mapping[str, Tensor],
    card: str,
    *,
    prompts: Mapping[str, str] | None = None,
    dtype: torch.dtype = torch.float32,
    onnx: bool = False,
) -> None:
    """What `write_encoder` writes, into an empty folder."""
    if onnx:
        require_onnx()
    with torch.device("meta"):
        encoder = source.network()
    _check_names(encoder, weights)
    _write(folder, source, encoder, weights, dict(source.prompts if prompts is None else prompts), dtype, onnx)
    write_text(folder / "README.md", card)
    if onnx:
        network = source.network().float()
        network.load_state_dict(weights)
        write_onnx(folder, network, source.max_length)


def _write(
    folder: Path,
    source: EncoderSource,
    encoder: SentenceEncoder,
    weights: Mapping[str, Tensor],
    prompts: dict[str, str],
    dtype: torch.dtype,
    onnx: bool,
) -> None:
    """All files but the model card and that of `onnx`."""
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules += [(str(part.kind), f"{number}_{part.kind}") for number, part in enumerate(encoder.head, start=2)]
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": _STOCK + kind}
        for number, (kind, path) in enumerate(modules)
    ]
    write_json(folder / MODULES, listed)
    write_json(folder / SETTINGS, _settings(source, prompts))
    _write_transformer(folder, source, encoder, _part(weights, "transformer.", dtype), dtype, onnx)
    write_json(folder / modules[1][1] / "config.json", encoder.pooling.settings)
    for number, part in enumerate(encoder.head):
        path = folder / modules[number + 2][1]
        write_json(path / "config.json", part.settings)
        own = _part(weights, f"head.{number}.", dtype)
        if own:
            _save(path / "model.safetensors", own)


def _settings(source: EncoderSource, prompts: dict[str, str]) -> dict[str, Any]:
    import transformers

    return {
        "model_type": "SentenceTransformer",
        "__version__": {"transformers": transformers.__version__, "pytorch": torch.__version__},
        "prompts": prompts,
        "default_prompt_name": source.default_prompt if source.default_prompt in prompts else None,
        "similarity_fn_name": source.similarity,
    }


def _write_transformer(
    folder: Path,
    source: EncoderSource,
    encoder: SentenceEncoder,
    weights: dict[str, Tensor],
    dtype: torch.dtype,
    onnx: bool,
) -> None:
    config = copy.deepcopy(source.config)
    config.architectures, config.dtype = [type(encoder.transformer).__name__], dtype
    config.save_pretrained(folder)
    source.tokenizer.save(folder, source.max_length)
    write_older_names(folder)
    settings: dict[str, Any] = {"max_seq_length": source.max_length, "do_lower_case": False}
    if getattr(encoder.transformer, "pooler", encoder) is None and not onnx:  # whose loader refuses model_args
        settings["model_args"] = {"add_pooling_layer": False}  # or its weights would be drawn, with a warning
    write_json(folder / TRANSFORMER_SETTINGS, settings)
    _save(folder / "model.safetensors", weights)


def _part(weights: Mapping[str, Tensor], prefix: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights whose names begin so, without that, in one type."""
    return {
        name.removeprefix(prefix): weight.detach().cpu().to(dtype if weight.is_floating_point() else weight.dtype)
        for name, weight in weights.items()
        if name.startswith(prefix)
    }


def _save(file: Path, weights: Mapping[str, Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with open_new(file) as new:
        mode = os.fstat(new.fileno()).st_mode
    try:
        save_file({name: weight.clone().contiguous() for name, weight in weights.items()}, file, {"format": "pt"})
    except SafetensorError as error:  # raised for a full disk, too
        raise OSError(str(error)) from error
    file.chmod(mode & 0o777)  # the library makes it readable by its owner only


def _check_names(encoder: SentenceEncoder, weights: Mapping[str, Tensor]) -> None:
    """Refuse weights of another network."""
    expected = {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        raise UserError(
            f"Give the weights of the network that this source builds; {wrong[0]} and {len(wrong) - 1} others are "
            "missing, unknown or of another shape."
        )
