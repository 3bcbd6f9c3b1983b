"""Tiny models of transformers in folders, with tokenizers and chat templates as published ones have them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from toys import made

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""With a system turn of its own."""
TRIMMED = (
    "{{ bos_token }}{% for m in messages %}<|turn|>{{ m['role'] }}\n\n{{ m['content'] | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n\n{% endif %}"
)
"""Begins with BOS, strips what is said, and marks turns with an added token that is not special."""
DATED = "Today is {{ strftime_now('%d %b %Y') }}.\n" + CHATML
BRACKETS = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token }}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)
"""Turns are marked by plain text, which a tokenizer joins with what is said."""
SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>", "<|end|>")
UNUSED_ROWS = 5
EXPERTS: dict[str, dict[str, int]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 1},
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 1,
        "moe_intermediate_size": 12,
        "head_dim": 8,
    },
}
"""What mixtures of experts have beside the sizes of others."""
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def bytes_with_merges(begins: bool = False) -> Tokenizer:
    """Byte-level, with a few longer tokens; `begins`: it puts BOS before a text."""
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ċ", "Ċ"), ("t", "h"), ("th", "e"), ("Ġ", "the")]
    vocabulary = {word: number for number, word in enumerate([*words, *map("".join, merges)])}
    inner = Tokenizer(models.BPE(vocabulary, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return with_added(inner, begins)


def words_with_spaces(begins: bool = False) -> Tokenizer:
    """As SentencePiece does it: a space is a letter of the next word, and a text begins with one."""
    letters = ["▁", *map(chr, range(33, 127))]
    byte_tokens = [f"<0x{number:02X}>" for number in range(256)]
    merges = [("▁", "t"), ("t", "h"), ("▁", "["), ("▁t", "h")]
    vocabulary = {word: number for number, word in enumerate([*byte_tokens, *letters, *map("".join, merges)])}
    inner = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(parts)
    return with_added(inner, begins)


def with_added(inner: Tokenizer, begins: bool) -> Tokenizer:
    inner.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    inner.add_tokens([AddedToken("<|turn|>", special=False, normalized=False)])
    if begins:
        bos = inner.token_to_id("<s>")
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    return inner


def player_folder(
    folder: Path,
    template: str | None = None,
    inner: Tokenizer | None = None,
    ends: Sequence[str] = ("<|end|>", "<|im_end|>"),
    kind: str = "llama",
    dtype: torch.dtype = torch.float32,
    **named: Any,
) -> Path:
    """A model with its tokenizer; `ends` are the tokens that end a text."""
    import transformers

    inner = inner or bytes_with_merges()
    names = {"bos_token": "<s>", "eos_token": "<|end|>", **named}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    rows = inner.get_vocab_size() + UNUSED_ROWS
    ids = [inner.token_to_id(end) for end in ends] or None
    common: dict[str, Any] = {"vocab_size": rows, "bos_token_id": None, "eos_token_id": ids, "pad_token_id": None}
    config: Any
    if kind == "gpt2":
        config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=512, **common, **NO_DROPOUT)
        network = made(lambda: transformers.GPT2LMHeadModel(config))
    else:
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        sizes |= EXPERTS.get(kind, {})
        config = transformers.AutoConfig.for_model(
            kind, **sizes, max_position_embeddings=512, initializer_range=0.3, **common
        )
        network = made(lambda: transformers.AutoModelForCausalLM.from_config(config))
    network.to(dtype).save_pretrained(folder)
    return folder


def every_folder(home: Path) -> dict[str, Path]:
    """Models with each kind of template and tokenizer, by name."""
    return {
        "chatml": player_folder(home / "chatml", CHATML),
        "trimmed": player_folder(home / "trimmed", TRIMMED, bytes_with_merges(begins=True)),
        "dated": player_folder(home / "dated", DATED),
        "brackets": player_folder(home / "brackets", BRACKETS, words_with_spaces(begins=True)),
        "spaces": player_folder(home / "spaces", CHATML, words_with_spaces()),
        "plain": player_folder(home / "plain"),
        "begins": player_folder(home / "begins", None, words_with_spaces(begins=True)),
    }
