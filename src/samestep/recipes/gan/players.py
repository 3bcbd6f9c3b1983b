"""The two players, a generator and a judge: each a language model, with what turns text into its tokens and back."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from samestep import (
    Batch,
    Bench,
    CausalConfig,
    CausalTransformer,
    GenerationConfig,
    LocalGenerator,
    Lora,
    UserError,
    World,
    completion_log_probs,
    open_causal_lm,
)
from samestep.core.config.bounds import CountOrZero
from samestep.core.config.checked import CheckedConfig
from samestep.data.tokenizer.vocabulary import BYTES, ByteTokenizer
from samestep.models.causal_folder import CausalFolder
from samestep.models.decoding import position_limit
from samestep.models.hub import resolve_model
from samestep.recipes.gan.data import TextRows
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

    @property
    def lora(self) -> Lora | None:
        return Lora(rank=self.lora_rank) if self.lora_rank else None


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
        """The text of tokens up to the first that ends it, without special ones."""

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
        tokenizer = ByteTokenizer()
        self.encode, self.decode = tokenizer.encode, tokenizer.decode
        self.network = partial(CausalTransformer, shape)
        self.forbidden = BYTES.forbidden(shape.embeddings)

    def around(self, before: str) -> tuple[list[int], list[int]]:
        assert BYTES.bos is not None
        return [BYTES.bos, *self.encode(before)], []

    def prompt(self, text: str) -> list[int]:
        return self.around(text)[0]


class FolderPlayer:
    """A causal model of transformers. A chat model is spoken to by its own template."""

    def __init__(self, folder: CausalFolder) -> None:
        self._folder, self._text = folder, folder.chat_tokens
        self.network, self.encode, self.decode = folder.network, self._text.encode, folder.decode
        self.eos, self.pad, self.forbidden = self._ends(), folder.pad, folder.unused

    def around(self, before: str) -> tuple[list[int], list[int]]:
        """By the chat template; a model without one gets the text itself."""
        return self._text.around(before) if self._text.has_template else (self._text.begin(before), [])

    def prompt(self, text: str) -> list[int]:
        if not self._text.has_template:
            return self._text.begin(text)
        return self._text.chat([{"role": "user", "content": text}])

    def _ends(self) -> tuple[int, ...]:
        """The first, which ends human texts, is the one that ends an answer in a chat."""
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
    player: Player, purpose: str, config: GenerationConfig, seed: int, world: World, rows_at_once: int
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
        tokens = self._player.prompt(text)
        if self._room is None or len(tokens) <= self._room:
            return Prompt(tokens, is_cut=False)
        before, after = self._player.around("")
        kept = self._room - len(before) - len(after)
        return Prompt([*before, *self._player.encode(text)[:kept], *after], is_cut=True)


class HumanTexts:
    """What a feed reads: prompts and human texts as tokens, cut to the length that a completion may have."""

    def __init__(self, rows: TextRows, player: Player, network: nn.Module, limit: int) -> None:
        self._rows, self._player, self._limit = rows, player, limit
        self._prompts = PromptWriter(player, position_limit(network), limit)
        self.pad = {"prompt": player.pad, "human": player.pad, "is_prompt": False, "is_human": False}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        record = self._rows.records[index]
        prompt = self._prompts(record.prompt).tokens
        human = [*self._player.encode(record.human), *self._player.eos[:1]][: self._limit]
        return {
            "prompt": torch.tensor(prompt),
            "is_prompt": torch.ones(len(prompt), dtype=torch.bool),
            "human": torch.tensor(human),
            "is_human": torch.ones(len(human), dtype=torch.bool),
        }

    def origins(self) -> list[Any]:
        return list(self._rows.origins())


def human_nats(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    """A loss: how unlikely each human text is, in nats."""
    given = batch["prompt"], batch["is_prompt"], batch["human"], batch["is_human"]
    return {"nats": -completion_log_probs(network, *given).log_probs.sum(1)}


def count_nats(batch: Batch) -> Mapping[str, Tensor]:
    """What the term of `human_nats` is divided by: tokens."""
    return {"nats": batch["is_human"].sum(1)}
