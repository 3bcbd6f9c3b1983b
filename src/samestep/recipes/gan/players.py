"""The two players, a generator and a judge: each a language model, with what turns text into its tokens and back."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from torch import nn

from samestep import (
    Bench,
    CausalConfig,
    CausalTransformer,
    GenerationConfig,
    LocalGenerator,
    UserError,
    World,
    open_causal_lm,
)
from samestep.core.config.bounds import CountOrZero
from samestep.core.config.checked import CheckedConfig
from samestep.data.tokenizer.vocabulary import BYTES, ByteTokenizer
from samestep.models.causal_folder import CausalFolder
from samestep.models.hub import resolve_model
from samestep.train.learner.draws import Draws


@dataclass(frozen=True)
class PlayerConfig(CheckedConfig):
    """A language model."""

    model: str | None = None
    """A folder with a causal model of transformers, or a model of the Hub (org/name); null: model_name, or else the
    built-in network on bytes."""
    network: CausalConfig = field(default_factory=lambda: CausalConfig(tied_head=True))
    """The shape of the built-in network."""
    lora_rank: CountOrZero = 0
    """Train adapters of this rank instead of the whole network; 0: the whole network."""
    init_from: str | None = None
    """Begin with the weights of a run, a checkpoint or a weight file such as generator_step_20.pt; null: with those of
    the model, or of what the run's own init_from names."""


class Player(Protocol):
    """The text side of a language model, and how its network is built."""

    @property
    def eos(self) -> Sequence[int]:
        """The tokens that end a text; the first is the one to end a text with."""

    @property
    def pad(self) -> int:
        """The token that stands where there is none."""

    @property
    def forbidden(self) -> Sequence[int]:
        """Tokens that are never written."""

    def network(self) -> nn.Module:
        """A network with its first weights."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text that follows other text, without special ones."""

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

    def __init__(self, folder: CausalFolder) -> None:
        self._folder, self._text = folder, folder.chat_tokens
        self.eos, self.pad = self._ends(), folder.pad
        self.forbidden = folder.unused

    def network(self) -> nn.Module:
        """The network with the weights of the folder."""
        return self._folder.network()

    def encode(self, text: str) -> list[int]:
        """The tokens of a text that follows other text, without special ones."""
        return self._text.encode(text)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens up to the first that ends it, without special ones."""
        return self._folder.decode(tokens)

    def around(self, before: str) -> tuple[list[int], list[int]]:
        """By the chat template; a model without one gets the text itself."""
        return self._text.around(before) if self._text.has_template else (self._text.begin(before), [])

    def prompt(self, text: str) -> list[int]:
        """A user's text, up to where the model answers."""
        if not self._text.has_template:
            return self._text.begin(text)
        return self._text.chat([{"role": "user", "content": text}])

    def _ends(self) -> tuple[int, ...]:
        """The tokens that end a text. The first, which ends human texts, is the one that ends an answer in a chat."""
        ends = self._folder.eos
        if not self._text.has_template:
            return ends
        first = [token for token in self._text.after_answer() if token in ends][:1]
        return (*first, *(token for token in ends if token not in first))


def open_player(config: PlayerConfig, default: str | None, world: World) -> Player:
    """The player that a configuration names; `default` is the model of both. Collective, since it may be downloaded."""
    name = config.model or default
    if name is None:
        return BuiltInPlayer(config.network)
    # Weights that are trained are float32, whatever they are stored in; the base of adapters stays as it is.
    dtype = "auto" if config.lora_rank else "float32"
    return FolderPlayer(open_causal_lm(resolve_model(name, world), dtype=dtype))


def build_networks(config: Any) -> dict[str, Callable[[], nn.Module]]:
    """For each learner, a function that builds its network."""

    def build(player: PlayerConfig) -> nn.Module:
        return open_player(player, config.model_name, World.single()).network()

    return {"generator": partial(build, config.generator), "judge": partial(build, config.judge)}


def generator_of(
    bench: Bench, player: Player, purpose: str, config: GenerationConfig, in_step: bool = True
) -> LocalGenerator:
    """What writes with a player's network and ends with its end of a text. Only inside of a step may it be left for a
    stop: after the updates of a step, these would be lost."""
    made = LocalGenerator.of(bench, purpose, config, eos=player.eos, pad=player.pad, forbidden=player.forbidden)
    return made if in_step else replace(made, check_stop=None)


def generator_without_stage(
    player: Player, purpose: str, config: GenerationConfig, seed: int, world: World, rows_at_once: int = 64
) -> LocalGenerator:
    """The same for a network that is only used, where nothing is trained."""
    special = (player.eos, player.pad, player.forbidden)
    return LocalGenerator(config, Draws(purpose, seed), world, *special, rows_at_once=rows_at_once)


@dataclass(frozen=True)
class Prompt:
    """What a generator reads."""

    tokens: list[int]
    is_cut: bool
    """Whether the end of the text was left out, because the network takes no more."""


class PromptWriter:
    """Makes prompts that leave room for a completion; what is too long is cut inside of the template."""

    def __init__(self, player: Player, limit: int | None, new_tokens: int) -> None:
        self._player, self._room = player, None if limit is None else limit - new_tokens
        around = len(player.prompt(""))
        if self._room is not None and self._room <= around:
            raise UserError(
                f"Set writing.max_new_tokens below {limit} - {around}: the generator takes {limit} tokens in all, and "
                f"{around} of them stand around a prompt; it is {new_tokens}."
            )

    def __call__(self, text: str) -> Prompt:
        """The prompt of a text."""
        tokens = self._player.prompt(text)
        if self._room is None or len(tokens) <= self._room:
            return Prompt(tokens, is_cut=False)
        before, after = self._player.around("")
        kept = self._room - len(before) - len(after)
        return Prompt([*before, *self._player.encode(text)[:kept], *after], is_cut=True)
