"""Texts as tokens, as sentence-transformers makes them of a folder's tokenizer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samestep.core.errors import UserError, first_line
from samestep.models.hub_download import TOKENIZERS

_NO_LIMIT = 10**6
"""Tokenizers that know no limit say so with a huge number."""


class TextTokenizer:
    """A tokenizer of transformers. Special tokens are included; a text that is too long is cut, they are kept."""

    def __init__(self, tokenizer: Any) -> None:
        self.inner = tokenizer
        """The tokenizer, an object of transformers."""
        pads = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        self.pad: int = next(int(pad) for pad in pads if pad is not None)
        """The token that stands where there is none."""
        limit = tokenizer.model_max_length
        self.limit: int | None = int(limit) if limit and limit < _NO_LIMIT else None
        """How many tokens a text may have, if the tokenizer says so."""

    def __call__(self, text: str, max_length: int) -> Tensor:
        """The tokens of one text."""
        return self.encode_all([text], max_length)[0]

    def encode_all(self, texts: Sequence[str], max_length: int) -> list[Tensor]:
        """The tokens of each text; many at once are faster."""
        if not texts:
            return []
        special = self.inner.num_special_tokens_to_add()
        if max_length <= special:
            raise UserError(f"Set max_length above {special}, the special tokens of every text; it is {max_length}.")
        found = self.inner(
            list(texts),
            truncation=True,
            max_length=max_length,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        return [torch.tensor(ids, dtype=torch.long) for ids in found["input_ids"]]

    def save(self, folder: Path, max_length: int) -> None:
        """Write its files, with this as its limit."""
        before = self.inner.model_max_length
        self.inner.backend_tokenizer.no_truncation()  # the last call's is no part of it
        self.inner.model_max_length = max_length
        try:
            self.inner.save_pretrained(folder)
        finally:
            self.inner.model_max_length = before


def read_tokenizer(folder: Path, lower_case: bool = False) -> TextTokenizer:
    """The tokenizer of a folder. `lower_case`: also where it would keep capitals."""
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise UserError(f"Copy the tokenizer's files into {folder}, such as a tokenizer.json; it has none.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library has no exceptions of its own
        raise UserError(
            f"Fetch or copy the tokenizer of {folder} again; it cannot be read ({first_line(error)})."
        ) from error
    if lower_case:
        _add_lower_case(tokenizer)
    return TextTokenizer(tokenizer)


def _add_lower_case(tokenizer: Any) -> None:
    """In front of what else it does to a text."""
    from tokenizers import normalizers

    inner = tokenizer.backend_tokenizer
    others = [] if inner.normalizer is None else [inner.normalizer]
    inner.normalizer = normalizers.Sequence([normalizers.Lowercase(), *others])
