"""What a lens is made of: its shape, what decoder and encoder have of their own, and adapters (LoRA).

Several adapters with names are on one frozen network, of which one acts at a time, or none. With none the network is
what it was, to the bit. Which of them act is a state of the layers, so the blocks keep it for activation checkpointing,
which computes them again when it is another.

And the decoder's texts, token by token: each token is read again by the next step, and gradients flow through it.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, one_hot, softmax

from samestep import Lora, UserError, noise
from samestep.models.residual_stream import ResidualStream, copy_sharing
from samestep.models.wide import wide
from samestep.train.learner.initialization import seed_of
from samestep.train.learner.lora import ALL_LINEAR, add_adapters, drawn_adapter, is_adapter_name, is_linear

Kind = Literal["frozen", "full", "lora"]


@dataclass(frozen=True)
class LensShape:
    """What a lens is made of."""

    layer: int
    """The activation is what leaves this block of the model, counted from 0."""
    t_text: int = 10
    """Tokens of a text."""
    encoder_layer: int | None = None
    """The encoder reads what leaves this block; None: the same as `layer`."""
    decoder: Kind = "full"
    """Whether the decoder's blocks are the model's, a trained copy of them, or the model's with adapters."""
    encoder: Kind = "full"
    """Likewise for the encoder's."""
    trains_decoder_projection: bool = True
    """Whether the linear map of an activation to a vector among the decoder's prompt is trained."""
    trains_prompt: bool = True
    """Whether the vectors of the decoder's prompt are trained, which begin as those of its tokens."""
    trains_head: bool = False
    """Whether the decoder has an output head of its own."""
    trains_encoder_projection: bool = True
    """Whether the linear map of what the encoder has read to an activation is trained."""
    lora: Lora = field(default_factory=Lora)
    """Adapters, where there are some."""
    kv_cache: bool = True
    """Whether the decoder keeps keys and values while it writes; the same numbers, in less time."""
    stop_gradient: bool = True
    """Whether no gradient flows through what the reconstruction of the other activation lacks."""
    bos: int | None = None
    """The token that a text begins with for the model."""
    seed: int = 0
    """Of the noise, and of the adapters' first values."""

    def __post_init__(self) -> None:
        if self.t_text < 1:
            raise UserError(f"t_text={self.t_text} leaves no token to explain an activation with; set it to 1 or more")

    @property
    def read_layer(self) -> int:
        """The block whose output the encoder reads."""
        return self.layer if self.encoder_layer is None else self.encoder_layer


class Decoder(nn.Module):
    """What the decoder has of its own."""

    def __init__(self, prompt: Tensor, slot: int, model: nn.Module | None, head: nn.Linear | None) -> None:
        """`prompt` are vectors [columns, width], of which so many stand before the activation as `slot` says."""
        super().__init__()
        self.projection = _identity(prompt.shape[1])
        self.prompt = nn.Parameter(prompt)
        self.model, self.head = model, head
        self.slot = slot

    def prompted(self, activations: Tensor, dtype: torch.dtype) -> Tensor:
        """The vectors [rows, columns, width] that the decoder begins with."""
        slot = self.projection(activations.to(self.projection.weight.dtype)).to(dtype)[:, None]
        vectors = self.prompt.to(dtype).expand(len(slot), -1, -1)
        return torch.cat((vectors[:, : self.slot], slot, vectors[:, self.slot :]), 1)


class Encoder(nn.Module):
    """What the encoder has of its own."""

    def __init__(self, width: int, model: nn.Module | None) -> None:
        super().__init__()
        self.projection = _identity(width)
        self.model = model


def _identity(width: int) -> nn.Linear:
    layer = nn.Linear(width, width)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(width))
        layer.bias.zero_()
    return layer


def trained_copy(model: nn.Module, shared: Sequence[nn.Module]) -> nn.Module:
    """A copy of a frozen model that trains, but for what it shares with it."""
    frozen = set(model.parameters())
    own = copy_sharing(model, shared)
    for parameter in own.parameters():
        parameter.requires_grad_(parameter not in frozen)
    return own


State = tuple[bool, str]
"""Whether all are off, and the one that acts if not."""


class NamedAdapters:
    """The adapters of one network."""

    def __init__(self, network: nn.Module, blocks: Mapping[str, Sequence[nn.Module]], lora: Lora, seed: int) -> None:
        """`blocks` are, by the adapter's name, those whose linear layers it is beside."""
        names = {adapter: _chosen(_linear_names(network, some), lora) for adapter, some in blocks.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Already found a `peft_config`")  # several are meant
            warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False")  # peft sets it right for GPT-2
            for adapter, targets in names.items():
                add_adapters(network, replace(lora, targets=targets), adapter)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            for name, parameter in network.named_parameters():
                if is_adapter_name(name):
                    parameter.requires_grad_(True)  # peft lets the last adapter alone train
                    if not parameter.is_meta:
                        parameter.copy_(drawn_adapter(name, parameter, seed_of(seed, "adapters", name)))
        self._layers: list[Any] = [part for part in network.modules() if hasattr(part, "_disable_adapters")]
        self._state: State = (True, "")
        self._set(self._state)
        for block in {id(block): block for some in blocks.values() for block in some}.values():
            block.keep_state = self._keep  # type: ignore[assignment]

    @contextmanager
    def used(self, adapter: str) -> Iterator[None]:
        """The network with one of its adapters."""
        with self._in_state((False, adapter)):
            yield

    def _keep(self) -> Callable[[], AbstractContextManager[None]]:
        return partial(self._in_state, self._state)

    @contextmanager
    def _in_state(self, state: State) -> Iterator[None]:
        before = self._state
        self._set(state)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, state: State) -> None:
        # peft's own switch also changes which parameters require gradients, which DDP and FSDP do not expect.
        self._state = state
        for layer in self._layers:
            layer._disable_adapters, layer._active_adapter = state[0], [state[1]]


def _chosen(names: Sequence[str], lora: Lora) -> Sequence[str]:
    """Those of these layers that get adapters."""
    if lora.targets == ALL_LINEAR:
        return names
    found = {target: [name for name in names if name.endswith(f".{target}")] for target in lora.targets}
    for target in (target for target, layers in found.items() if not layers):
        raise UserError(f"Name linear layers of the model's blocks in lora_targets; {target!r} is none of them.")
    return [name for name in names if any(name in layers for layers in found.values())]


def _linear_names(network: nn.Module, blocks: Sequence[nn.Module]) -> list[str]:
    """The full names of the linear layers in some blocks. One with an adapter has its own linear layer inside."""
    chosen = {part for block in blocks for part in block.modules()}
    found = []
    for name, part in network.named_modules():
        is_inside_adapter = is_adapter_name(name) or name.endswith(".base_layer")
        if part in chosen and not is_inside_adapter and (is_linear(part) or hasattr(part, "base_layer")):
            found.append(name)
    return found


def straight_through(logits: Tensor, gumbel: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [rows] drawn from softmax(logits) by Gumbel noise, and their one-hot vectors [rows, vocabulary], whose
    gradient is that of the noisy softmax at the temperatures `tau` [rows]."""
    scores = logits + gumbel.to(logits.dtype)
    tokens = (logits.detach().double() + gumbel).argmax(-1)  # in float64, which does not clip the tail of the noise
    soft = softmax(scores / tau[:, None].to(logits.dtype), -1)
    return tokens, one_hot(tokens, logits.shape[-1]).to(logits.dtype) + (soft - soft.detach())


class Explanation(NamedTuple):
    """Texts about activations."""

    tokens: Tensor
    """[rows, T]"""
    mixtures: Tensor
    """[rows, T, vocabulary]: the tokens, one-hot; their gradients are those of the distributions they were drawn
    from."""
    log_probs: Tensor
    """[rows, T, vocabulary]: the decoder's distributions, without noise."""


@dataclass(frozen=True)
class KeyedDraws:
    """Tokens drawn with noise that is keyed by a seed, a purpose, the rows' `ids` [rows, 2] and the token's place."""

    seed: int
    purpose: int | Tensor
    ids: Tensor
    tau: Tensor
    """[rows]: the temperatures that gradients are those of."""

    def draw(self, logits: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Tokens [rows], and their mixtures [rows, vocabulary]."""
        key = (self.seed, self.purpose, self.ids[:, :1], self.ids[:, 1:], position)
        every_token = torch.arange(logits.shape[-1], device=logits.device)
        return straight_through(logits, noise.gumbel(*key, every_token), self.tau)


def write_text(
    stream: ResidualStream,
    vectors: Tensor,
    length: int,
    draws: KeyedDraws | None,
    temperature: Tensor | None,
    *,
    has_cache: bool,
) -> Explanation:
    """So many tokens after what the decoder begins with, `vectors` [rows, columns, width]; without `draws`, the
    likeliest each time. Logits are divided by `temperature` [rows], if there is one. Without a cache of keys and values
    everything is read again for each token."""
    cache = stream.new_cache() if has_cache else None
    new, written = vectors, []
    for position in range(length):
        if cache is not None:
            logits = stream.next_logits(new, cache)
        else:
            vectors = new if position == 0 else torch.cat((vectors, new), 1)
            last = torch.full((len(vectors),), vectors.shape[1] - 1, device=vectors.device)
            logits = stream.logits(vectors, last)
        logits = wide(logits)
        if temperature is not None:
            logits = logits / temperature[:, None].to(logits.dtype)
        if draws is None:
            tokens = logits.argmax(-1)
            mixture = one_hot(tokens, logits.shape[-1]).to(logits.dtype)
        else:
            tokens, mixture = draws.draw(logits, position)
        written.append((tokens, mixture, log_softmax(logits, -1)))
        new = stream.embed_mixture(mixture)[:, None]
    return Explanation(*(torch.stack(parts, 1) for parts in zip(*written, strict=True)))
