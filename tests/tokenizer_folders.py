"""Tokenizer folders as published models have them."""

from pathlib import Path

import tokenizers


def plain_folder(folder: Path, added: dict[str, bool], base: int = 0) -> Path:
    """A published tokenizer: byte-level, with added tokens (name: whether special) behind `base` made-up ones."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(f"Ġfiller{i}" for i in range(base - len(alphabet)))]
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({word: i for i, word in enumerate(words)}, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    for name, special in added.items():
        token = tokenizers.AddedToken(name, special=special, normalized=False)
        inner.add_special_tokens([token]) if special else inner.add_tokens([token])
    folder.mkdir(parents=True, exist_ok=True)
    inner.save(str(folder / "tokenizer.json"))
    return folder
