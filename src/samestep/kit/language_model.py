"""A causal language model and its tokenizer: the built-in network on bytes, or a model of transformers.

    model = open_language_model(config.model, bench.world, shape=config.network)    # see named_model.py
    policy = bench.learner(model.network, lora=config.lora)
    prompts = [model.prompt(question) for question in questions]

Texts become tokens in two ways. `prompt`, `around` and `encode` are for texts that come from anywhere: they cannot
spell special tokens, and a chat model is spoken to by its template. `begin` and `whole` are for training records: a
text is taken as it is, and may bring a template's tokens with it; only a chat goes through the template.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from torch import nn

from samestep.core.errors import UserError
from samestep.core.library_errors import tokenizer_sentence
from samestep.data.tokenizer.vocabulary import BYTES, ByteTokenizer
from samestep.models.causal_folder import CausalFolder
from samestep.models.causal_lm import CausalConfig, CausalTransformer
from samestep.models.decoding import configured_limit
from samestep.models.model_files import FilesByPurpose, causal_files

Chat = Sequence[Mapping[str, Any]]
"""Messages, each with a role and a content."""
BUILT_IN = "built-in"


class LanguageModel(Protocol):
    """A causal language model and its tokenizer."""

    @property
    def name(self) -> str:
        """What it is called, for people."""

    @property
    def bos(self) -> int | None:
        """The token that begins a text, if there is one; a tokenizer may have one and not use it."""

    @property
    def eos(self) -> Sequence[int]:
        """All tokens that end a text or an answer."""

    @property
    def text_end(self) -> int:
        """The one to end a text with."""

    @property
    def answer_end(self) -> int:
        """The one to end an answer with: in a chat that of a turn."""

    @property
    def pad(self) -> int:
        """The token that stands where there is none."""

    @property
    def forbidden(self) -> Sequence[int]:
        """Tokens that are never written."""

    @property
    def limit(self) -> int | None:
        """How many tokens it reads at most, if there is a limit."""

    @property
    def layers(self) -> int:
        """How many blocks it has."""

    @property
    def dtype(self) -> str:
        """The type of its weights."""

    @property
    def files(self) -> FilesByPurpose:
        """All files that its tokens and what it computes follow from: `weights`, `configuration`, `tokenizer`."""

    def network(self) -> nn.Module:
        """A network with its first weights; may be called again, for another one."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text that follows other text, without special ones."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens up to the first that ends it, without special ones."""

    def spell(self, tokens: Iterable[int]) -> str:
        """The text of all tokens, also of those after an end."""

    def prompt(self, text: str) -> list[int]:
        """A user's text, up to where the model answers."""

    def around(self, before: str) -> tuple[list[int], list[int]]:
        """What stands before and after some text of a user that begins with `before`, up to where the model answers."""

    def begin(self, text: str | Chat) -> list[int]:
        """The beginning of a record: a text as it is, or a chat, up to where the model answers."""

    def whole(self, prompt: str | Chat, completion: str | Chat) -> list[int]:
        """Both parts of a record, the end included: texts, or chats."""


@dataclass(frozen=True)
class ByteModel:
    """A small transformer whose tokens are bytes."""

    shape: CausalConfig
    name: str = BUILT_IN
    make: Callable[[], nn.Module] | None = None
    """Makes the network, where it is a trained one."""
    made_from: FilesByPurpose = field(default_factory=dict)
    """The files that it is made from."""
    setting: str = "network"
    """The setting that holds the shape, for messages."""
    bos: int | None = BYTES.bos
    eos: Sequence[int] = (BYTES.eos,)
    text_end: int = BYTES.eos
    answer_end: int = BYTES.eos
    pad: int = BYTES.eos
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.shape.vocab_size != BYTES.size:
            raise UserError(f"Leave {self.setting}.vocab_size at {BYTES.size}: the built-in network reads bytes.")

    @property
    def forbidden(self) -> Sequence[int]:
        return BYTES.forbidden(self.shape.embeddings)

    @property
    def limit(self) -> int | None:
        return configured_limit(self.shape)

    @property
    def layers(self) -> int:
        return self.shape.n_layers

    @property
    def files(self) -> FilesByPurpose:
        return self.made_from

    def network(self) -> nn.Module:
        return CausalTransformer(self.shape) if self.make is None else self.make()

    def encode(self, text: str) -> list[int]:
        return ByteTokenizer().encode(text)

    def decode(self, tokens: Iterable[int]) -> str:
        return ByteTokenizer().decode(tokens)

    def spell(self, tokens: Iterable[int]) -> str:
        """Special tokens are left out."""
        return bytes(token for token in tokens if token < 256).decode("utf-8", errors="replace")

    def prompt(self, text: str) -> list[int]:
        return self.begin(text)

    def around(self, before: str) -> tuple[list[int], list[int]]:
        return self.begin(before), []

    def begin(self, text: str | Chat) -> list[int]:
        if not isinstance(text, str):
            raise UserError("Name a chat model: the built-in network knows no chats.")
        assert BYTES.bos is not None
        return [BYTES.bos, *self.encode(text)]

    def whole(self, prompt: str | Chat, completion: str | Chat) -> list[int]:
        return [*self.begin(prompt), *self.encode(str(completion)), BYTES.eos]


@dataclass(frozen=True)
class FolderModel:
    """A causal model of transformers in a folder."""

    folder: CausalFolder
    name: str = ""
    make: Callable[[], nn.Module] | None = None
    """Makes the network, where it was trained further."""
    made_from: FilesByPurpose = field(default_factory=dict)
    """The files that it is made from; others are those of the folder."""

    def network(self) -> nn.Module:
        return self.folder.network() if self.make is None else self.make()

    @property
    def bos(self) -> int | None:
        found = self.folder.tokenizer.bos_token_id
        return None if found is None else int(found)

    @cached_property
    def text_end(self) -> int:
        own = self.folder.tokenizer.eos_token_id
        return self.folder.eos[0] if own is None else int(own)

    @cached_property
    def eos(self) -> Sequence[int]:
        return tuple(dict.fromkeys((*self.folder.eos, self.text_end)))

    @cached_property
    def answer_end(self) -> int:
        after = self.folder.chat_tokens.after_answer() if self.folder.chat_tokens.has_template else []
        return next((token for token in after if token in self.eos), self.eos[0])

    @property
    def pad(self) -> int:
        return self.folder.pad

    @property
    def forbidden(self) -> Sequence[int]:
        return self.folder.unused

    @property
    def limit(self) -> int | None:
        return configured_limit(self.folder.text_config)

    @property
    def layers(self) -> int:
        return int(self.folder.text_config.num_hidden_layers)

    @property
    def dtype(self) -> str:
        stored = self.folder.config.dtype if self.folder.dtype == "auto" else self.folder.dtype
        return str(stored).removeprefix("torch.")

    @property
    def files(self) -> FilesByPurpose:
        return {**causal_files(self.folder.path, self.folder.tokenizer_folder), **self.made_from}

    def encode(self, text: str) -> list[int]:
        return self.folder.chat_tokens.encode(text)

    def decode(self, tokens: Iterable[int]) -> str:
        return self.folder.decode(tokens)

    def spell(self, tokens: Iterable[int]) -> str:
        """Special tokens too."""
        with tokenizer_sentence(self.folder.tokenizer_folder):
            return str(self.folder.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))

    def prompt(self, text: str) -> list[int]:
        """By the chat template; a model without one gets the text itself."""
        if not self.folder.chat_tokens.has_template:
            return self.folder.chat_tokens.begin(text)
        return self.folder.chat_tokens.chat([{"role": "user", "content": text}])

    def around(self, before: str) -> tuple[list[int], list[int]]:
        tokens = self.folder.chat_tokens
        return tokens.around(before) if tokens.has_template else (tokens.begin(before), [])

    def begin(self, text: str | Chat) -> list[int]:
        return self._ids(text) if isinstance(text, str) else self.folder.encode_chat(text)

    def whole(self, prompt: str | Chat, completion: str | Chat) -> list[int]:
        if isinstance(prompt, str) or isinstance(completion, str):
            ids = self._ids(f"{prompt}{completion}")
            return ids if ids[-1:] == [self.text_end] else [*ids, self.text_end]
        return self.folder.encode_chat([*prompt, *completion], answer=False)

    def _ids(self, text: str) -> list[int]:
        """With what the tokenizer itself puts around a text."""
        with tokenizer_sentence(self.folder.tokenizer_folder):
            return list(self.folder.tokenizer(text, verbose=False)["input_ids"])


def first_tokens(model: LanguageModel) -> list[int]:
    """The token that begins a text, if the model has one."""
    return [] if model.bos is None else [model.bos]


def without_dropout(network: nn.Module) -> nn.Module:
    """The network with all its dropout set to 0, also what attention is given as a number, and that of whole layers."""
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    return network
