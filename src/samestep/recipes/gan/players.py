"""The two players, a generator and a judge: each a language model, with what turns text into its tokens and back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import nn

from samestep import CausalConfig, CausalTransformer, UserError, World, open_causal_lm
from samestep.data.tokenizer.vocabulary import BYTES, ByteTokenizer
from samestep.models.causal_folder import CausalFolder
from samestep.models.hub import resolve_model


@dataclass(frozen=True)
class PlayerConfig:
    """A language model."""

    model: str | None = None
    """A folder with a causal model of transformers, or a model of the Hub (org/name); null: model_name, or else the
    built-in network on bytes."""
    network: CausalConfig = field(default_factory=lambda: CausalConfig(tied_head=True))
    """The shape of the built-in network."""
    lora_rank: int = 0
    """Train adapters of this rank instead of the whole network; 0: the whole network."""
    init_from: str | None = None
    """Begin with the weights of a run, a checkpoint or a weight file such as generator_step_20.pt; null: with those of
    the model, or of what the run's own init_from names."""

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        if self.lora_rank < 0:
            raise UserError(f"Set lora_rank to 0 or more; it is {self.lora_rank}.")


class Player(Protocol):
    """The text side of a language model, and how its network is built."""

    @property
    def eos(self) -> Sequence[int]:
        """The tokens that end a text."""

    @property
    def pad(self) -> int:
        """The token that stands where there is none."""

    @property
    def forbidden(self) -> Sequence[int]:
        """Tokens that are never written."""

    def network(self) -> nn.Module:
        """A network with its first weights."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special ones."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, without what ends it."""

    def around(self, before: str) -> tuple[list[int], list[int]]:
        """What stands before and after some text of a user that begins with `before`, up to where the model answers."""

    def prompt(self, text: str) -> list[int]:
        """A user's text, up to where the model answers."""


class BuiltInPlayer:
    """A small transformer whose tokens are bytes."""

    eos, pad = (BYTES.eos,), BYTES.eos

    def __init__(self, shape: CausalConfig) -> None:
        if shape.vocab_size != BYTES.size:
            raise UserError(f"Leave network.vocab_size at {BYTES.size}: the built-in network reads bytes.")
        self._shape, self._tokenizer = shape, ByteTokenizer()
        self.forbidden = BYTES.forbidden(shape.embeddings)

    def network(self) -> nn.Module:
        """A network with random weights."""
        return CausalTransformer(self._shape)

    def encode(self, text: str) -> list[int]:
        """Its bytes."""
        return self._tokenizer.encode(text)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of bytes, up to the end of the text."""
        return self._tokenizer.decode(tokens)

    def around(self, before: str) -> tuple[list[int], list[int]]:
        """The beginning of a text, and nothing after."""
        assert BYTES.bos is not None
        return [BYTES.bos, *self.encode(before)], []

    def prompt(self, text: str) -> list[int]:
        """A text that goes on."""
        return self.around(text)[0]


class FolderPlayer:
    """A causal model of transformers. A chat model is spoken to by its own template."""

    _PLACE = "\x00texts\x00"
    """Where the texts stand in a template; no template and no text holds it."""

    def __init__(self, folder: CausalFolder) -> None:
        self._folder, self._tokenizer = folder, folder.tokenizer
        self.eos, self.pad = folder.eos, folder.pad
        self.forbidden: Sequence[int] = ()

    def network(self) -> nn.Module:
        """The network with the weights of the folder."""
        return self._folder.network()

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special ones."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, without special ones."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def around(self, before: str) -> tuple[list[int], list[int]]:
        """By the chat template; a model without one gets the text itself."""
        if not self._tokenizer.chat_template:
            begin = self._tokenizer.bos_token_id
            return [*([] if begin is None else [begin]), *self.encode(before)], []
        message = {"role": "user", "content": before + self._PLACE}
        rendered = self._tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
        opening, found, closing = rendered.partition(self._PLACE)
        if not found:
            raise UserError(f"the chat template in {self._folder.path} drops the user's text; use another model")
        return self.encode(opening), self.encode(closing)

    def prompt(self, text: str) -> list[int]:
        """A user's text, up to where the model answers."""
        before, after = self.around(text)
        return [*before, *after]


def open_player(config: PlayerConfig, default: str | None, world: World) -> Player:
    """The player that a configuration names; `default` is the model of both. Collective, since it may be downloaded."""
    name = config.model or default
    if name is None:
        return BuiltInPlayer(config.network)
    # Weights that are trained are float32, whatever they are stored in; the base of adapters stays as it is.
    dtype = "auto" if config.lora_rank else "float32"
    return FolderPlayer(open_causal_lm(resolve_model(name, world), dtype=dtype))
