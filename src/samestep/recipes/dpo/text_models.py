"""The language model of text pairs: a network, and what turns a pair into its tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import nn

from samestep import CausalConfig, CausalTransformer, UserError, World, open_causal_lm
from samestep.core.library_errors import tokenizer_sentence
from samestep.data.tokenizer.vocabulary import BYTES, ByteTokenizer
from samestep.models.causal_folder import CausalFolder
from samestep.models.hub import resolve_model
from samestep.recipes.dpo.config import ModelConfig
from samestep.recipes.dpo.text_records import Text, TextPair


class PairTokens(NamedTuple):
    """A pair as tokens; each completion follows the prompt."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]


class TextModel(Protocol):
    """A language model."""

    pad: int
    """The token that stands where there is none."""
    limit: int | None
    """How many tokens a text may have."""

    @property
    def eos(self) -> Sequence[int]:
        """The tokens that end a text."""

    @property
    def forbidden(self) -> Sequence[int]:
        """Tokens that are never written."""

    def network(self) -> nn.Module:
        """A network with its first weights."""

    def encode(self, pair: TextPair) -> PairTokens:
        """The tokens of a pair, ends of texts included."""

    def prompt(self, text: Text) -> list[int]:
        """The tokens of a prompt, up to where the model goes on."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a completion, without what ends it."""


class BuiltInModel:
    """A small transformer whose tokens are bytes."""

    pad, eos = BYTES.eos, (BYTES.eos,)

    def __init__(self, shape: CausalConfig) -> None:
        if shape.vocab_size != BYTES.size:
            raise UserError(f"Leave model.text.vocab_size at {BYTES.size}: the built-in network reads bytes.")
        self._shape, self._tokenizer = shape, ByteTokenizer()
        self.limit: int | None = shape.max_sequence_length
        self.forbidden = BYTES.forbidden(shape.embeddings)

    def network(self) -> nn.Module:
        """A network with random weights."""
        return CausalTransformer(self._shape)

    def encode(self, pair: TextPair) -> PairTokens:
        """Bytes, after the token that begins and before the one that ends a text."""
        prompt = self.prompt(pair.prompt)
        chosen, rejected = ([*self._tokenizer.encode(str(text)), BYTES.eos] for text in (pair.chosen, pair.rejected))
        return PairTokens(prompt, chosen, rejected)

    def prompt(self, text: Text) -> list[int]:
        """The beginning of a text."""
        if not isinstance(text, str):
            raise UserError("Name a chat model with base_model_name: the built-in network knows no chats.")
        assert BYTES.bos is not None
        return [BYTES.bos, *self._tokenizer.encode(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of bytes, up to the end of the text."""
        return self._tokenizer.decode(tokens)


class FolderModel:
    """A causal model of transformers. Chats go through its template; a text is taken as it is, and ends with EOS.

    A completion begins where the tokens of prompt and completion together leave those of the prompt, which may be a
    little before the prompt's end: some tokenizers join letters over it.
    """

    def __init__(self, folder: CausalFolder) -> None:
        self._folder, self.pad = folder, folder.pad
        limit = getattr(folder.config.get_text_config(decoder=True), "max_position_embeddings", None)
        self.limit = limit if isinstance(limit, int) else None
        own = folder.tokenizer.eos_token_id
        self._end = folder.eos[0] if own is None else int(own)
        self.eos = tuple(dict.fromkeys((self._end, *folder.eos)))
        self.forbidden = folder.unused

    def network(self) -> nn.Module:
        """The network with the weights of the folder."""
        return without_dropout(self._folder.network())

    def encode(self, pair: TextPair) -> PairTokens:
        """By the chat template, or as plain text."""
        prompt = self.prompt(pair.prompt)
        chosen, rejected = (self._whole(pair.prompt, completion) for completion in (pair.chosen, pair.rejected))
        shared = min(_shared(prompt, whole) for whole in (chosen, rejected))
        return PairTokens(prompt[:shared], chosen[shared:], rejected[shared:])

    def prompt(self, text: Text) -> list[int]:
        """A text as it is, or a chat up to where the model answers."""
        return self._ids(text) if isinstance(text, str) else self._folder.encode_chat(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return self._folder.decode(tokens)

    def _whole(self, prompt: Text, completion: Text) -> list[int]:
        """Prompt and completion together."""
        if isinstance(prompt, str) or isinstance(completion, str):
            ids = self._ids(f"{prompt}{completion}")
            return ids if ids[-1:] == [self._end] else [*ids, self._end]
        return self._folder.encode_chat([*prompt, *completion], answer=False)

    def _ids(self, text: str) -> list[int]:
        with tokenizer_sentence(self._folder.path):
            return list(self._folder.tokenizer(text, verbose=False)["input_ids"])


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts begin with in common."""
    return next((place for place, (a, b) in enumerate(zip(first, second)) if a != b), min(len(first), len(second)))


def without_dropout(network: nn.Module) -> nn.Module:
    """The network with all its dropout set to 0, also what attention is given as a number, and that of whole layers: a
    policy that drops and a reference that does not are never the same network."""
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    return network


def open_text_model(config: ModelConfig, world: World) -> TextModel:
    """The model that a configuration names. Collective, since it may be downloaded."""
    name = config.name
    if config.dir is not None:
        name = str(Path(config.dir) / name) if name else config.dir
    if name is None:
        return BuiltInModel(config.text)
    # Weights that are trained are float32, whatever they are stored in; the base of adapters stays as it is.
    dtype = "auto" if config.lora_rank else "float32"
    return FolderModel(open_causal_lm(resolve_model(name, world), dtype=dtype))
