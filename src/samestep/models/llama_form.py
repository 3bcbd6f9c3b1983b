"""The built-in causal network in the form that transformers knows: a Llama with a tokenizer of bytes.

`CausalTransformer` computes what `LlamaForCausalLM` does, with its rotary layout (pairs half a head apart), so that
its weights need other names only. Rows of the embedding that belong to no token stay.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from samestep.models.causal_lm import CausalConfig

_OUTSIDE = {
    "transformer.wte.weight": "model.embed_tokens.weight",
    "transformer.ln_f.weight": "model.norm.weight",
    "transformer.ff_out.weight": "lm_head.weight",
}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
_WORDS = {"mask": "mask", "eos": "endoftext", "bos": "startoftext"}
_BLOCK = re.compile(rf"transformer\.blocks\.(\d+)\.({'|'.join(_INSIDE)})\.weight")


def llama_names(names: Iterable[str]) -> dict[str, str] | None:
    """By the name of each weight of the built-in network, its name in a Llama; None if one is of another network."""
    found = {}
    for name in names:
        block = _BLOCK.fullmatch(name)
        if block is None and name not in _OUTSIDE:
            return None
        found[name] = f"model.layers.{block[1]}.{_INSIDE[block[2]]}.weight" if block else _OUTSIDE[name]
    return found


def llama_config(shape: CausalConfig, bos: int | None, eos: int) -> Any:
    """The configuration of transformers for a network of this shape, whose texts begin and end with these tokens."""
    from transformers import LlamaConfig

    settings: dict[str, Any] = {"rope_theta": shape.rope_theta}  # where transformers keeps it depends on its version
    return LlamaConfig(
        vocab_size=shape.embeddings,
        hidden_size=shape.d_model,
        intermediate_size=shape.mlp_hidden_size,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.max_sequence_length,
        rms_norm_eps=shape.rms_norm_eps,
        tie_word_embeddings=shape.tied_head,
        initializer_range=shape.init_std,
        bos_token_id=bos,
        eos_token_id=eos,
        pad_token_id=eos,
        **settings,
    )


def byte_tokenizer(special: Mapping[str, int]) -> Any:
    """A tokenizer of transformers whose tokens are bytes, and `special` ones with the numbers after them: mask, eos and
    bos. It puts bos in front of a text, and text cannot spell special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = {name: f"<|{_WORDS[name]}|>" for name in sorted(special, key=lambda name: special[name])}
    inner = Tokenizer(models.BPE({_letter(byte): byte for byte in range(256)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in words.values()])
    bos, eos = words["bos"], words["eos"]
    inner.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, special["bos"])])
    named = {"bos_token": bos, "eos_token": eos, "pad_token": eos, "mask_token": words["mask"]}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        **named,
    )


def _letter(byte: int) -> str:
    """The letter that byte-level tokenizers write for a byte: itself where it can be seen, else one after 255."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [other for other in range(256) if other not in visible]
    return chr(byte) if byte in visible else chr(256 + hidden.index(byte))
