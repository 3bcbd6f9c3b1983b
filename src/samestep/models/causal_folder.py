"""A causal language model of transformers in a local folder: its network, its tokenizer, its special tokens.

    folder = open_causal_lm("models/SmolLM2-135M-Instruct", dtype="bfloat16")
    policy = bench.learner(folder.network, lora=Lora(rank=8))
    prompts = [folder.encode_chat([{"role": "user", "content": question}]) for question in questions]

Nothing is downloaded, and no code from the folder is run. What is missing is refused with a sentence.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from torch import nn

from samestep.core.errors import UserError, first_line
from samestep.core.json_files import read_sized_object
from samestep.core.library_errors import library_sentence, tokenizer_sentence
from samestep.models.chat_tokens import ChatTokens
from samestep.models.folder_code import refuse_hub_kernels
from samestep.models.folder_fields import CONFIG, GENERATION, MOST_BYTES, TOKENIZER_CONFIG, check_folder
from samestep.models.folder_weights import read_layout
from samestep.models.network_size import check_rows, check_size
from samestep.models.text_tokenizer import open_tokenizer

DTYPES = ("auto", "float32", "float64", "bfloat16", "float16")
_WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
_OFFLINE: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}


@dataclass(frozen=True)
class CausalFolder:
    """A folder that was checked. Its weights are read when `network` is called."""

    path: Path
    config: Any
    """The configuration, an object of transformers."""
    dtype: str = "auto"
    attention: str | None = None
    tokenizer_path: Path | None = None
    """The folder of the tokenizer, where it is another one."""

    def network(self) -> nn.Module:
        """The network with its weights, on the CPU; may be called again, for another one."""
        from transformers import AutoModelForCausalLM

        with library_sentence(f"the model in {self.path} cannot be loaded"), without_progress_bars():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                self.path,
                dtype=self.dtype,
                attn_implementation=self.attention,
                output_loading_info=True,
                **_OFFLINE,
            )
        network, info = loaded
        missing = sorted(info["missing_keys"])
        if missing:
            raise UserError(
                f"{self.path} has no weights for {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}; fetch "
                "or copy it again, since they would be random"
            )
        assert isinstance(network, nn.Module)
        return network

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, an object of transformers."""
        return open_tokenizer(self.tokenizer_folder)

    @property
    def tokenizer_folder(self) -> Path:
        return self.path if self.tokenizer_path is None else self.tokenizer_path

    @cached_property
    def eos(self) -> tuple[int, ...]:
        """The tokens that end a text; for a chat model also the one that ends a turn."""
        if not self._named_ends:
            raise UserError(f'no file in {self.path} says which token ends a text; add "eos_token_id" to {GENERATION}')
        return self._named_ends

    @cached_property
    def _named_ends(self) -> tuple[int, ...]:
        file, named = GENERATION, read_sized_object(self.path / GENERATION, MOST_BYTES).get("eos_token_id")
        if named is None:
            file, named = CONFIG, getattr(self.text_config, "eos_token_id", None)
        if named is None:
            file, named = TOKENIZER_CONFIG, self.tokenizer.eos_token_id
        if named is None:
            return ()
        ends = tuple(named) if isinstance(named, list | tuple) else (named,)
        self._check_ids(ends, f"eos_token_id in {self.path / file}")
        return ends

    @cached_property
    def pad(self) -> int:
        """The token for padding: the tokenizer's own, or else one that ends a text, or else any."""
        own = self.tokenizer.pad_token_id
        if own is None:
            return next(iter(self._named_ends), 0)
        self._check_ids((own,), f"the padding token of {self.path}")
        return int(own)

    @cached_property
    def unused(self) -> list[int]:
        """Rows of the embedding that belong to no token, as where it was rounded up."""
        return sorted(set(range(self._rows)).difference(self.tokenizer.get_vocab().values()))

    @property
    def text_config(self) -> Any:
        """The part of the configuration that is about texts."""
        return self.config.get_text_config(decoder=True)

    @property
    def _rows(self) -> int:
        return int(self.text_config.vocab_size)

    def _check_ids(self, ids: Iterable[Any], what: str) -> None:
        """Refuse ids that no token can have."""
        wrong = [number for number in ids if type(number) is not int or not 0 <= number < self._rows]
        if wrong:
            raise UserError(
                f"Fix {what}, or use another folder: it is {wrong[0]!r}, and tokens have numbers from 0 to "
                f"{self._rows - 1:,}."
            )

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens up to the first that ends it, without special ones."""
        kept = list(takewhile(lambda token: token not in self.eos, tokens))
        with tokenizer_sentence(self.tokenizer_folder):
            return str(self.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @cached_property
    def chat_tokens(self) -> ChatTokens:
        """Texts and chats as tokens, without special ones that a text spells."""
        return ChatTokens(self.tokenizer, self.tokenizer_folder)

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, answer: bool = True) -> list[int]:
        """The tokens of a chat by the tokenizer's template; with `answer`, up to where the model is to answer. What is
        said cannot spell special tokens."""
        if not self.tokenizer.chat_template:
            raise UserError(
                f"the tokenizer in {self.path} has no chat template; use a chat model, or encode plain text with "
                "folder.tokenizer"
            )
        return self.chat_tokens.chat(messages, answer)


def open_causal_lm(
    folder: str | Path, *, dtype: str = "auto", attention: str | None = None, tokenizer: Path | None = None
) -> CausalFolder:
    """Check a local folder. `dtype` is the type of the weights, `auto` as they are stored; `attention` is one of
    transformers' implementations, such as `sdpa` or `eager`; without one transformers chooses. `tokenizer` is a folder
    with another tokenizer."""
    path = Path(folder)
    if dtype not in DTYPES:
        raise UserError(f"Set dtype to one of {', '.join(DTYPES)}; it is {dtype!r}.")
    _check_files(path)
    check_folder(path)
    refuse_hub_kernels(path / CONFIG)
    try:
        from transformers import AutoConfig
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError as error:  # it is missing, or something that it needs
        raise UserError(
            'a causal language model needs the library transformers; install it with: pip install "samestep[hf]" '
            f"({first_line(error)})"
        ) from error
    with library_sentence(f"{path / CONFIG} cannot be used"):
        config = AutoConfig.from_pretrained(path, **_OFFLINE)
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    named = getattr(config, "architectures", None) or [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, "")]
    if not known.intersection(named):
        raise UserError(
            f"{path} holds a {named[0] or config.model_type}, which is not a causal language model; give a model that "
            "predicts the next token, such as a LlamaForCausalLM"
        )
    _check_size(path, config)
    return CausalFolder(path, config, dtype, attention, tokenizer)


def _check_size(path: Path, config: Any) -> None:
    """Refuse a network that is larger than the weights in its folder, before it is built."""
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    stored = read_layout(path)
    rows = getattr(config.get_text_config(decoder=True), "vocab_size", None)
    if not isinstance(rows, int):
        raise UserError(f"Add vocab_size to {path / CONFIG}; it is missing.")
    check_rows(rows, stored, path)
    is_packed = getattr(config, "quantization_config", None) is not None
    with library_sentence(f"{path / CONFIG} cannot be used"), no_init_weights():
        build = partial(AutoModelForCausalLM.from_config, copy.deepcopy(config), trust_remote_code=False)
        check_size(build, stored, path, is_packed=is_packed)


def _check_files(path: Path) -> None:
    """Refuse a folder without the files of a model."""
    if not path.is_dir():
        raise UserError(f"{path} is not a folder; give the folder of a model that was downloaded")
    if (path / "adapter_config.json").is_file():
        raise UserError(f"{path} holds adapters; give the folder of their base, and the adapters as init_from")
    if not (path / CONFIG).is_file():
        gguf = next(iter(sorted(path.glob("*.gguf"))), None)
        if gguf is not None:
            raise UserError(f"{gguf} is a GGUF file; convert it to a folder of transformers with safetensors first")
        raise UserError(f"{path} has no {CONFIG}; give the folder of a model of transformers")
    if not any(True for pattern in _WEIGHT_FILES for _ in path.glob(pattern)):
        raise UserError(f"{path} has a {CONFIG} but no weights, such as a model.safetensors; fetch them")


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Every rank would draw its own."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
