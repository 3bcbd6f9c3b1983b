"""The frozen language model: its network, and what turns text into its tokens and back."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from samestep import CausalConfig, CausalTransformer, UserError, World, open_causal_lm
from samestep.core.library_errors import tokenizer_sentence
from samestep.data.tokenizer.vocabulary import BYTES, ByteTokenizer
from samestep.models.causal_folder import CausalFolder
from samestep.models.chat_tokens import ChatTokens
from samestep.models.decoding import configured_limit
from samestep.models.hub import resolve_model
from samestep.models.model_files import FilesByPurpose, causal_files
from samestep.models.text_tokenizer import read_tokenizer
from samestep.parallel.build import build_uninitialized
from samestep.recipes.lens.config import SLOT, LensConfig
from samestep.train.learner.frozen import read_copy

BUILT_IN = "built-in"


class LanguageModel(Protocol):
    """A causal language model and its tokenizer."""

    @property
    def name(self) -> str:
        """The name of the model, for people."""

    @property
    def characters_per_token(self) -> int:
        """Of English text, about."""

    @property
    def bos(self) -> int | None:
        """The token that begins a text."""

    @property
    def pad(self) -> int:
        """The token that stands where there is none."""

    @property
    def layers(self) -> int:
        """How many blocks it has."""

    @property
    def most_tokens(self) -> int | None:
        """How many tokens it reads at most, if there is a limit."""

    @property
    def dtype(self) -> str:
        """The type of its weights."""

    @property
    def files(self) -> FilesByPurpose:
        """The files that its tokens and its activations follow from."""

    def network(self) -> nn.Module:
        """A network with its weights."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special ones."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens."""


@dataclass(frozen=True)
class BuiltInModel:
    """A small transformer whose tokens are bytes, trained by the first stage."""

    shape: CausalConfig
    weights: Path | None
    """What that stage left; None: random weights."""
    name: str = BUILT_IN
    characters_per_token: int = 1
    bos: int | None = BYTES.bos
    pad: int = BYTES.eos
    dtype: str = "float32"

    @property
    def files(self) -> FilesByPurpose:
        return {} if self.weights is None else {"weights": {self.weights.name: self.weights}}

    @property
    def layers(self) -> int:
        return self.shape.n_layers

    @property
    def most_tokens(self) -> int | None:
        return configured_limit(self.shape)

    def network(self) -> nn.Module:
        """The network with the weights of the file, if there is one."""
        network = CausalTransformer(self.shape)
        if self.weights is not None:
            self.check_weights()
            read_copy(self.weights).fill(network.state_dict())
        return network

    def check_weights(self) -> None:
        """Refuse a file that is not there, or is of another shape."""
        assert self.weights is not None
        if not self.weights.is_file():
            raise UserError(f"{self.weights} is gone, the built-in language model; put it back, or start a new run.")
        expected = build_uninitialized(lambda: CausalTransformer(self.shape)).state_dict()
        found = read_copy(self.weights).layout
        if {name: weight.shape for name, weight in found.items()} != {n: w.shape for n, w in expected.items()}:
            raise UserError(
                f"Set pretrain.network as in the run that trained {self.weights}: it has another shape there."
            )

    def encode(self, text: str) -> list[int]:
        return ByteTokenizer().encode(text)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of bytes; special tokens are left out."""
        return bytes(token for token in tokens if token < 256).decode("utf-8", errors="replace")


@dataclass(frozen=True)
class FolderModel:
    """A causal model of transformers."""

    name: str
    folder: CausalFolder
    tokenizer: Any
    tokenizer_folder: Path
    characters_per_token: int = 4

    def network(self) -> nn.Module:
        return self.folder.network()

    @cached_property
    def _text(self) -> ChatTokens:
        return ChatTokens(self.tokenizer, self.tokenizer_folder)

    @property
    def bos(self) -> int | None:
        found = self.tokenizer.bos_token_id
        return None if found is None else int(found)

    @property
    def pad(self) -> int:
        """Any token does, since a causal model does not look ahead."""
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, self.bos, 0)
        return next(int(token) for token in known if token is not None)

    @property
    def layers(self) -> int:
        return int(self.folder.config.get_text_config(decoder=True).num_hidden_layers)

    @property
    def most_tokens(self) -> int | None:
        return configured_limit(self.folder.config.get_text_config(decoder=True))

    @property
    def dtype(self) -> str:
        stored = self.folder.config.dtype if self.folder.dtype == "auto" else self.folder.dtype
        return str(stored).removeprefix("torch.")

    @property
    def files(self) -> FilesByPurpose:
        return causal_files(self.folder.path, self.tokenizer_folder)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; what spells a special token is only text."""
        return self._text.encode(text)

    def decode(self, tokens: Iterable[int]) -> str:
        with tokenizer_sentence(self.tokenizer_folder):
            return str(self.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))

    def check_tokenizer(self) -> None:
        """Refuse a tokenizer with tokens that the model does not know."""
        largest = max(self.tokenizer.get_vocab().values())
        rows = int(self.folder.config.get_text_config(decoder=True).vocab_size)
        if largest >= rows:
            raise UserError(
                f"Set tokenizer_name to the tokenizer of {self.name}: that in {self.tokenizer_folder} does not match "
                f"the model, since it has tokens up to {largest}, and the model knows {rows}."
            )


def open_language_model(config: LensConfig, world: World, weights: Path | None = None) -> LanguageModel:
    """The model that a configuration names; `weights` are those of the built-in one. Collective: it may be
    downloaded."""
    if config.model_name is None:
        if config.pretrain.network.vocab_size != BYTES.size:
            raise UserError(f"Leave pretrain.network.vocab_size at {BYTES.size}: the built-in model reads bytes.")
        return BuiltInModel(config.pretrain.network, weights)
    parts = config.trainable_components
    # Weights that are trained are float32, whatever they are stored in; what is frozen stays as it is.
    is_trained = True in (parts.decoder.base_model, parts.encoder.base_model)
    path = resolve_model(config.model_name, world)
    folder = open_causal_lm(path, dtype="float32" if is_trained else "auto")
    named = resolve_model(config.tokenizer_name, world) if config.tokenizer_name else path
    model = FolderModel(config.model_name, folder, read_tokenizer(named).inner, named)
    model.check_tokenizer()
    return model


def prompt_tokens(model: LanguageModel, prompt: str) -> tuple[list[int], list[int]]:
    """The tokens before and after the activation's place in the decoder's prompt."""
    before, after = prompt.split(SLOT)
    first = [] if model.bos is None else [model.bos]
    return [*first, *model.encode(before)], model.encode(after)
