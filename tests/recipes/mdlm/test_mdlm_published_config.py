"""The configuration of published LLaDA models."""

import json
from pathlib import Path

import pytest
import torch

from samestep.core.errors import UserError
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm.pretrained import as_config, is_published, read_config

LLADA_8B = {
    "activation_type": "silu",
    "alibi": False,
    "alibi_bias_max": 8.0,
    "architectures": ["LLaDAModelLM"],
    "attention_dropout": 0.0,
    "bias_for_layer_norm": False,
    "block_type": "llama",
    "d_model": 4096,
    "embedding_size": 126464,
    "eos_token_id": 126081,
    "include_bias": False,
    "init_device": "meta",
    "init_std": 0.02,
    "layer_norm_type": "rms",
    "mask_token_id": 126336,
    "max_sequence_length": 4096,
    "mlp_hidden_size": 12288,
    "model_type": "llada",
    "multi_query_attention": None,
    "n_heads": 32,
    "n_kv_heads": 32,
    "n_layers": 32,
    "pad_token_id": 126081,
    "rms_norm_eps": 1e-05,
    "rope": True,
    "rope_full_precision": True,
    "rope_theta": 500000.0,
    "vocab_size": 126464,
    "weight_tying": False,
}


def folder_with(path: Path, **changes: object) -> Path:
    content = {name: value for name, value in {**LLADA_8B, **changes}.items() if value != "absent"}
    (path / "config.json").write_text(json.dumps(content))
    return path


def test_llada_8b_is_read_and_has_the_published_size(tmp_path: Path) -> None:
    found = read_config(folder_with(tmp_path))
    assert found.ids == {"mask_token_id": 126336, "eos_token_id": 126081, "pad_token_id": 126081}
    assert (found.network.kv_heads, found.network.rope_theta, found.network.causal) == (32, 500000.0, False)
    with torch.device("meta"):
        network = Transformer(found.network)
    assert sum(p.numel() for p in network.parameters()) == 8_015_581_184


def test_optional_fields_have_the_published_defaults(tmp_path: Path) -> None:
    network = read_config(folder_with(tmp_path, n_kv_heads=None, embedding_size="absent", rope="absent")).network
    assert (network.kv_heads, network.embeddings) == (32, 126464)
    assert read_config(folder_with(tmp_path, n_kv_heads=8)).network.kv_heads == 8


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("include_bias", True),
        ("include_qkv_bias", True),
        ("bias_for_layer_norm", True),
        ("weight_tying", True),
        ("alibi", True),
        ("rope", False),
        ("rope_full_precision", False),
        ("rope_scaling", {"factor": 2}),
        ("layer_norm_type", "default"),
        ("layer_norm_with_affine", False),
        ("activation_type", "swiglu"),
        ("block_type", "sequential"),
        ("attention_layer_norm", True),
        ("input_emb_norm", True),
        ("multi_query_attention", True),
        ("clip_qkv", 8.0),
        ("scale_logits", True),
        ("residual_dropout", 0.1),
    ],
)
def test_unsupported_settings_are_refused_by_name(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(UserError, match=rf"config.json sets {field} to .* which this network does not support"):
        read_config(folder_with(tmp_path, **{field: value}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mask_token_id": 126464}, "mask_token_id to 126464, outside of the embedding with its 126464 rows"),
        ({"mask_token_id": -1}, "mask_token_id to -1, outside"),
        ({"mask_token_id": "absent"}, "lacks mask_token_id"),
        ({"eos_token_id": 200000}, "eos_token_id to 200000, outside"),
        ({"rope_theta": "absent", "n_layers": None}, "lacks n_layers, rope_theta"),
        ({"n_heads": 31}, "config.json cannot be used: Choose n_heads"),
        ({"d_model": "wide"}, "config.json cannot be used: d_model"),
        ({"model_type": "llama"}, "is of a 'llama'"),
    ],
)
def test_an_invalid_configuration_is_refused(tmp_path: Path, changes: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read_config(folder_with(tmp_path, **changes))


def test_other_folders_are_recognised(tmp_path: Path) -> None:
    assert is_published(folder_with(tmp_path))
    assert not is_published(folder_with(tmp_path, model_type="llama"))
    for text in ('{"recipe": "mdlm", "config": {}}', "[]", "not json"):
        (tmp_path / "config.json").write_text(text)
        assert not is_published(tmp_path)
    assert not is_published(tmp_path / "none")
    with pytest.raises(UserError, match="is missing or is not JSON"):
        read_config(tmp_path / "none")


@pytest.mark.parametrize("shape", [{}, {"n_kv_heads": 2}, {"embedding_size": 320}])
def test_an_exported_configuration_is_read_back(tmp_path: Path, shape: dict[str, int]) -> None:
    network = TransformerConfig(rope_theta=10000.0, max_sequence_length=77, **shape)
    ids = {"mask_token_id": 256, "eos_token_id": 257, "pad_token_id": 257}
    (tmp_path / "config.json").write_text(json.dumps(as_config(network, ids, "float32")))
    found = read_config(tmp_path)
    assert found.ids == ids
    for name in ("d_model", "n_layers", "n_heads", "kv_heads", "mlp_hidden_size", "vocab_size", "embeddings"):
        assert getattr(found.network, name) == getattr(network, name)
    assert (found.network.rope_theta, found.network.max_sequence_length) == (10000.0, 77)
    assert found.network.rms_norm_eps == network.rms_norm_eps


def test_what_the_format_cannot_hold_is_not_exported() -> None:
    with pytest.raises(UserError, match="has no causal networks"):
        as_config(TransformerConfig(causal=True), {"mask_token_id": 256}, "float32")
    with pytest.raises(UserError, match="mask_token_id to 259, outside"):
        as_config(TransformerConfig(), {"mask_token_id": 259}, "float32")
