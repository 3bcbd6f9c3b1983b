"""Tiny causal language models: the native one, and some of transformers, with random weights that are not small."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samestep.models.causal_lm import CausalConfig, CausalTransformer
from toys import made

TOKENS = 23
SIZES: dict[str, Any] = {
    "vocab_size": TOKENS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}


def native(**changes: Any) -> CausalTransformer:
    """A native one."""
    shape = {"d_model": 16, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "mlp_hidden_size": 24, "vocab_size": TOKENS}
    fields = {**shape, "max_sequence_length": 64, "init_std": 0.3, **changes}
    return made(lambda: CausalTransformer(CausalConfig(**fields)).eval())  # type: ignore[no-any-return]


def of_transformers(kind: str, attention: str = "sdpa", **changes: Any) -> nn.Module:
    """One of `llama`, `qwen2`, `qwen3`, `gemma`, `gemma2` (which changes its logits and has a window), `gemma3` (every
    second layer has a window here), `gpt2`."""
    import transformers

    kinds: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, {}),
        "qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config, {}),
        "gemma": (transformers.GemmaForCausalLM, transformers.GemmaConfig, {"head_dim": 4}),
        "gemma2": (transformers.Gemma2ForCausalLM, transformers.Gemma2Config, {"head_dim": 4, "sliding_window": 4}),
        "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, {"head_dim": 4}),
        "gemma3": (
            transformers.Gemma3ForCausalLM,
            transformers.Gemma3TextConfig,
            {"head_dim": 4, "sliding_window": 4, "sliding_window_pattern": 2},
        ),
        "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config, {}),
    }
    build, configure, own = kinds[kind]
    sizes = {**SIZES, **own, **changes}
    if kind == "gpt2":
        sizes = {"vocab_size": TOKENS, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64, **changes}
    config = configure(**sizes, bos_token_id=0, eos_token_id=1, pad_token_id=0, attn_implementation=attention)
    return made(lambda: build(config).eval())  # type: ignore[no-any-return]


def logits_of(network: nn.Module, tokens: Tensor) -> Tensor:
    """All logits of rows without padding."""
    out = network(tokens)
    return out if isinstance(out, Tensor) else out.logits


def chat_folder(folder: Path) -> Path:
    """A model as it is published: weights, a tokenizer whose tokens are letters, a chat template."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = {"<end>": 0, "<pad>": 1} | {chr(code): 2 + number for number, code in enumerate(range(97, 118))}
    special = {"eos_token": "<end>", "pad_token": "<pad>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(letters, [])), **special)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}a{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(**SIZES, bos_token_id=None, eos_token_id=0, pad_token_id=1)
    made(lambda: LlamaForCausalLM(config)).to(torch.bfloat16).save_pretrained(folder)
    return folder
