"""Texts as tokens, as sentence-transformers makes them of a folder's tokenizer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samestep.core.errors import UserError
from samestep.core.library_errors import library_sentence, tokenizer_sentence
from samestep.core.tokenizer_file import check_tokenizer_file, check_vocabulary
from samestep.models.folder_code import refuse_own_code
from samestep.models.folder_fields import TOKENIZER_CONFIG, check_folder
from samestep.models.hub_download import TOKENIZERS

_NO_LIMIT = 10**6
"""Tokenizers that know no limit say so with a huge number."""


class TextTokenizer:
    """A tokenizer of transformers. Special tokens are included; a text that is too long is cut, they are kept."""

    def __init__(self, tokenizer: Any, folder: Path | None = None) -> None:
        """`folder` is where it is from, for messages."""
        self.inner, self._folder = tokenizer, folder
        """The tokenizer, an object of transformers."""
        pads = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        self.pad: int = next(int(pad) for pad in pads if pad is not None)
        """The token that stands where there is none."""
        limit = tokenizer.model_max_length
        self.limit: int | None = int(limit) if limit and limit < _NO_LIMIT else None
        """How many tokens a text may have, if the tokenizer says so."""

    def __call__(self, text: str, max_length: int) -> Tensor:
        return self.encode_all([text], max_length)[0]

    def encode_all(self, texts: Sequence[str], max_length: int) -> list[Tensor]:
        """The tokens of each text; many at once are faster."""
        if not texts:
            return []
        self.require_room(max_length)
        with tokenizer_sentence(self._folder or Path()):
            found = self.inner(
                list(texts),
                truncation=True,
                max_length=max_length,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )
        return [torch.tensor(ids, dtype=torch.long) for ids in found["input_ids"]]

    def require_room(self, max_length: int, before: Sequence[str] = (), setting: str = "max_length") -> None:
        """Refuse a length without room for a token of a text behind each of these texts, which stand before others."""
        special = self.inner.num_special_tokens_to_add()
        taken = max([special, *(special + len(plain_ids(self.inner, text)) for text in before)])
        if max_length <= taken:
            what = "the special tokens of every text" + (" and what stands before it" if taken > special else "")
            raise UserError(f"Set {setting} above {taken}, {what}; it is {max_length}.")

    def save(self, folder: Path, max_length: int) -> None:
        """Write its files, with this as its limit."""
        before = self.inner.model_max_length
        self.inner.backend_tokenizer.no_truncation()  # the last call's is no part of it
        self.inner.model_max_length = max_length
        try:
            self.inner.save_pretrained(folder)
        finally:
            self.inner.model_max_length = before


def read_tokenizer(
    folder: Path, lower_case: bool = False, append_eos: bool | None = None, section: str = ""
) -> TextTokenizer:
    """The tokenizer of a folder. `lower_case`: also where it would keep capitals. One that names code of its own is
    refused, unless `append_eos` says whether every text is to end with its end token; the name of that setting begins
    with `section`."""
    setting = f"{section}append_eos"
    if append_eos is None:
        meant = f"Set {setting}=true or {setting}=false to say what is meant"
        refuse_own_code(folder / TOKENIZER_CONFIG, f"{meant}; its own code probably appends an end token:")
    tokenizer = open_tokenizer(folder)
    tokenizer.init_kwargs.pop("auto_map", None)  # what is written later must not name it either
    if lower_case:
        _add_lower_case(tokenizer)
    if append_eos:
        _append_end(tokenizer, folder, setting)
    return TextTokenizer(tokenizer, folder)


def open_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder as an object of transformers. Its files may come from anybody."""
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise UserError(f"Copy the tokenizer's files into {folder}, such as a tokenizer.json; it has no tokenizer.")
    check_folder(folder)
    check_tokenizer_file(folder / "tokenizer.json")
    check_vocabulary(folder / "vocab.json")
    with library_sentence(f"Fetch or copy the tokenizer of {folder} again; it cannot be read"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        _ = tokenizer.get_vocab(), tokenizer.all_special_ids
    return tokenizer


def plain_ids(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text, none put around it. A tokenizer of the tokenizers library is asked itself: transformers
    takes as long again for what nobody reads."""
    inner = getattr(tokenizer, "backend_tokenizer", None) if tokenizer.is_fast else None
    if inner is None:
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    if inner.truncation is not None:  # of the last call of somebody else, or of its file
        inner.no_truncation()
    if inner.padding is not None:
        inner.no_padding()
    found: list[int] = inner.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return found


def _append_end(tokenizer: Any, folder: Path, setting: str) -> None:
    """Behind what it puts around a text. A text that is cut keeps it, as it keeps all that is not of the text."""
    from tokenizers import processors

    end, number = tokenizer.eos_token, tokenizer.eos_token_id
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if end is None or inner is None:
        raise UserError(f"Leave out {setting}: the tokenizer in {folder} has no end token that can be appended.")
    if inner.encode("a").ids[-1:] == [number]:
        return
    others = [] if inner.post_processor is None else [inner.post_processor]
    appended = processors.TemplateProcessing(single=["$A", end], special_tokens=[(end, number)])
    inner.post_processor = processors.Sequence([*others, appended])


def _add_lower_case(tokenizer: Any) -> None:
    """In front of what else it does to a text."""
    from tokenizers import normalizers

    inner = tokenizer.backend_tokenizer
    others = [] if inner.normalizer is None else [inner.normalizer]
    inner.normalizer = normalizers.Sequence([normalizers.Lowercase(), *others])
