"""The configuration file of published LLaDA models, read and written.

Such a folder holds `config.json`, the weights as safetensors (one file, or several with an index) under the names of
`Transformer` with `model.` in front, and the files of a tokenizer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.core.config import build
from samestep.core.errors import UserError
from samestep.models.transformer import TransformerConfig

CONFIG = "config.json"
KIND = "llada"
SHAPE = (
    "d_model",
    "n_layers",
    "n_heads",
    "mlp_hidden_size",
    "vocab_size",
    "max_sequence_length",
    "rope_theta",
    "rms_norm_eps",
)
"""Fields that must be there: a network with another value would be another one."""
OPTIONAL = ("n_kv_heads", "embedding_size", "init_std")
FIXED: Mapping[str, Any] = {
    "block_type": "llama",
    "block_group_size": 1,
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "bias_for_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "weight_tying": False,
    "rope": True,
    "rope_full_precision": True,
    "rope_scaling": None,
    "alibi": False,
    "clip_qkv": None,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "multi_query_attention": None,
    "scale_logits": False,
    "attention_dropout": 0.0,
    "residual_dropout": 0.0,
    "embedding_dropout": 0.0,
}
"""What the published code can do in other ways too, and this network in just one."""
IDS = ("mask_token_id", "eos_token_id", "pad_token_id", "bos_token_id")


@dataclass(frozen=True)
class Published:
    """What the configuration of a published model says."""

    network: TransformerConfig
    ids: Mapping[str, int]
    """The special tokens it names: mask_token_id, and mostly eos_token_id and pad_token_id."""


def is_published(folder: Path) -> bool:
    """Whether a folder holds a published LLaDA model."""
    found = _parsed(folder / CONFIG)
    return isinstance(found, dict) and found.get("model_type", KIND) == KIND and "d_model" in found


def read_config(folder: Path) -> Published:
    """The network and the special tokens of a published model; what this network does not do is refused by name."""
    path = folder / CONFIG
    found = _parsed(path)
    if not isinstance(found, dict):
        raise UserError(f"{path} is missing or is not JSON; give a folder with a published LLaDA model.")
    if found.get("model_type", KIND) != KIND:
        raise UserError(f"{path} is of a {found['model_type']!r}; give a folder with a published LLaDA model.")
    _refuse_other_networks(path, found)
    absent = [name for name in SHAPE if found.get(name) is None]
    if absent:
        raise UserError(f"{path} does not say {', '.join(absent)}; fetch or copy it again.")
    shape = {name: found[name] for name in (*SHAPE, *OPTIONAL) if found.get(name) is not None}
    try:
        network = build(TransformerConfig, shape)
    except UserError as error:
        raise UserError(f"{path} cannot be used: {error}") from None
    return Published(network, _ids(path, found, network))


def as_config(network: TransformerConfig, ids: Mapping[str, int], dtype: str) -> dict[str, Any]:
    """The content of `config.json` for a network whose weights are stored as `dtype`."""
    if network.causal:
        raise UserError("the published format knows no causal network; only one with causal=false can be written so")
    shape = {name: getattr(network, name) for name in (*SHAPE, *OPTIONAL)}
    shape |= {"n_kv_heads": network.kv_heads, "embedding_size": network.embeddings}
    content = {"architectures": ["LLaDAModelLM"], "model_type": KIND, **shape, **FIXED, **ids}
    _ids(Path(CONFIG), content, network)
    return {**content, "flash_attention": False, "use_cache": False, "torch_dtype": dtype}


def _refuse_other_networks(path: Path, found: Mapping[str, Any]) -> None:
    for name, ours in FIXED.items():
        theirs = found.get(name)
        # Absent or null is left to the default, and a false is as good as none.
        if theirs is not None and theirs != ours and (theirs or ours):
            raise UserError(
                f"{path} sets {name} to {json.dumps(theirs)}, which this network does not do "
                f"(it has {json.dumps(ours)}); choose another model."
            )


def _ids(path: Path, found: Mapping[str, Any], network: TransformerConfig) -> dict[str, int]:
    if found.get("mask_token_id") is None:
        raise UserError(f"{path} does not say mask_token_id; add the number of the token that stands for a hidden one.")
    ids = {name: found[name] for name in IDS if found.get(name) is not None}
    for name, number in ids.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < network.embeddings:
            raise UserError(
                f"{path} sets {name} to {json.dumps(number)}, outside of the embedding with its "
                f"{network.embeddings} rows; correct it."
            )
    return ids


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
