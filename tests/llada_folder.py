"""A small model in the layout of the published LLaDA folders: its configuration, its weights, and its own code, which
is written for the tests."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tokenizer_folders import plain_folder

SPECIAL = ("<|endoftext|>", "<|mdm_mask|>", "<|startoftext|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
IDS = {"mask_token_id": 257, "eos_token_id": 256, "pad_token_id": 256}
SHAPE: dict[str, Any] = {
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "mlp_hidden_size": 48,
    "vocab_size": 262,
    "embedding_size": 264,
    "max_sequence_length": 64,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
}
AUTO_MAP = {
    "AutoConfig": "configuration_llada.LLaDAConfig",
    "AutoModel": "modeling_llada.LLaDAModelLM",
    "AutoModelForCausalLM": "modeling_llada.LLaDAModelLM",
}
MARKER = "MARKER"
"""Stands for the file that the code writes when it is imported."""
CONFIGURATION = """
from transformers import PretrainedConfig

open("MARKER", "w").close()


class LLaDAConfig(PretrainedConfig):
    model_type = "llada"

    def __init__(self, use_cache=False, **settings):
        for name in ("d_model", "n_layers", "n_heads", "n_kv_heads", "mlp_hidden_size", "embedding_size"):
            setattr(self, name, settings.pop(name, 1))
        self.rope_theta = settings.pop("rope_theta", 10000.0)
        self.rms_norm_eps = settings.pop("rms_norm_eps", 1e-5)
        self.mask_token_id = settings.pop("mask_token_id", None)
        super().__init__(use_cache=use_cache, **settings)
"""
MODELING = """
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_llada import (
    LLaDAConfig,
)

open("MARKER", "w").close()


class Norm(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(config.d_model)), config.rms_norm_eps

    def forward(self, x):
        return self.weight * x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()


def turned(x, theta):
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[-2]).float(), theta ** (-torch.arange(half).float() / half))
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, heads = config.d_model, config.n_heads
        self.heads, self.size, self.theta = heads, width // heads, config.rope_theta
        self.attn_out = nn.Linear(width, width, bias=False)
        self.ff_out = nn.Linear(config.mlp_hidden_size, width, bias=False)
        self.attn_norm, self.ff_norm = Norm(config), Norm(config)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, config.n_kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(width, config.n_kv_heads * self.size, bias=False)
        self.ff_proj = nn.Linear(width, config.mlp_hidden_size, bias=False)
        self.up_proj = nn.Linear(width, config.mlp_hidden_size, bias=False)

    def split(self, x):
        heads = x.unflatten(-1, (-1, self.size)).transpose(1, 2)
        return heads.repeat_interleave(self.heads // heads.shape[1], dim=1)

    def forward(self, x):
        y = self.attn_norm(x)
        q, k = (turned(self.split(part(y)), self.theta) for part in (self.q_proj, self.k_proj))
        weights = (q @ k.transpose(-1, -2) / self.size**0.5).softmax(-1)
        x = x + self.attn_out((weights @ self.split(self.v_proj(y))).transpose(1, 2).flatten(2))
        y = self.ff_norm(x)
        return x + self.ff_out(nn.functional.silu(self.ff_proj(y)) * self.up_proj(y))


class LLaDAModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.embedding_size, config.d_model),
                "ln_f": Norm(config),
                "blocks": nn.ModuleList(Block(config) for _ in range(config.n_layers)),
                "ff_out": nn.Linear(config.d_model, config.embedding_size, bias=False),
            }
        )

    def forward(self, tokens):
        parts = self.transformer
        x = parts["wte"](tokens)
        for block in parts["blocks"]:
            x = block(x)
        return parts["ff_out"](parts["ln_f"](x))


class LLaDAModelLM(PreTrainedModel):
    config_class = LLaDAConfig
    base_model_prefix = "model"

    def __init__(self, config):
        super().__init__(config)
        self.model = LLaDAModel(config)
        self.post_init()

    def forward(self, input_ids, attention_mask=None):
        return CausalLMOutput(logits=self.model(input_ids))

"""


def llada_folder(folder: Path, marker: Path, auto_map: Any = AUTO_MAP) -> Path:
    """The folder. Whoever runs its code leaves the file `marker`."""
    plain_folder(folder, dict.fromkeys(SPECIAL, True))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({**named, "chat_template": template}))
    config = {"architectures": ["LLaDAModelLM"], "model_type": "llada", "auto_map": auto_map, **SHAPE, **IDS}
    (folder / "config.json").write_text(json.dumps(config))
    for name, text in (("configuration_llada.py", CONFIGURATION), ("modeling_llada.py", MODELING)):
        (folder / name).write_text(text.replace(MARKER, str(marker)))
    (folder / "convert.py").write_text(f'open("{marker}", "w").close()\n')
    (folder / "tokenizer_tools.py").write_text(f'open("{marker}", "w").close()\n')
    save_file(_weights(), folder / "model.safetensors", {"format": "pt"})
    return folder


def _weights() -> dict[str, torch.Tensor]:
    width, hidden, rows = SHAPE["d_model"], SHAPE["mlp_hidden_size"], SHAPE["embedding_size"]
    keys = width // SHAPE["n_heads"] * SHAPE["n_kv_heads"]
    block: dict[str, tuple[int, ...]] = {
        "q_proj": (width, width),
        "k_proj": (keys, width),
        "v_proj": (keys, width),
        "attn_out": (width, width),
    }
    block |= {"ff_proj": (hidden, width), "up_proj": (hidden, width), "ff_out": (width, hidden)}
    block |= {"attn_norm": (width,), "ff_norm": (width,)}
    shapes = {f"blocks.{n}.{name}": shape for n in range(SHAPE["n_layers"]) for name, shape in block.items()}
    shapes |= {"wte": (rows, width), "ff_out": (rows, width), "ln_f": (width,)}
    noise = torch.Generator().manual_seed(4)
    return {
        f"model.transformer.{name}.weight": torch.randn(shape, generator=noise) * 0.2 + (len(shape) == 1)
        for name, shape in shapes.items()
    }
