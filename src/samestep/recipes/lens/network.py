"""The network of the lens: a decoder puts an activation of a frozen model into words, an encoder rebuilds it from them.

    lens = Lens(model, LensShape(layer=6, t_text=10), prompt=(before, after))
    rows = lens(batch)             # the terms of the loss, one value a row

Everything goes through `forward`, which `what` tells what to do, so that DDP and FSDP see it. The frozen model is one
module, used for the decoder and the encoder too where these have no layers of their own. It always computes with the
embeddings of the frozen model, so that a token means the same to the decoder, the encoder and the model.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from samestep import Batch, Lora, noise
from samestep.models.residual_stream import ResidualStream, copy_sharing, with_head
from samestep.recipes.lens.adapters import NamedAdapters
from samestep.recipes.lens.distributions import entropy_of, kl_divergence, wide
from samestep.recipes.lens.shape import Kind, LensShape
from samestep.recipes.lens.writing import Explanation, KeyedDraws, write_text

__all__ = ["Lens", "LensShape", "relative_error"]
What = Literal["terms", "explain", "greedy", "score", "activation", "check", "behaviour", "read", "logit_lens"]
OWN, OTHER = noise.purpose("lens"), noise.purpose("lens/other")
"""What noise is for: the text about a row's activation, and that about the one it is compared with."""


class _Decoder(nn.Module):
    """What the decoder has of its own."""

    def __init__(self, prompt: Tensor, width: int, model: nn.Module | None, head: nn.Linear | None) -> None:
        super().__init__()
        self.projection = _identity(width)
        self.prompt = nn.Parameter(prompt)
        self.model, self.head = model, head


class _Encoder(nn.Module):
    """What the encoder has of its own."""

    def __init__(self, width: int, model: nn.Module | None) -> None:
        super().__init__()
        self.projection = _identity(width)
        self.model = model


class Lens(nn.Module):
    """A frozen model, and the decoder and the encoder around it."""

    has_frozen_base = True
    is_recordable = True
    """Noise is keyed by tensors of the batch, and there is no dropout (see parallel/loss_graphs.py)."""

    def __init__(self, model: nn.Module, shape: LensShape, prompt: tuple[Sequence[int], Sequence[int]]) -> None:
        """`prompt` has the tokens of the decoder's prompt before and after the activation."""
        super().__init__()
        self.shape, self._slot = shape, len(prompt[0])
        self.model = model.requires_grad_(False).eval()
        stream = self._stream = ResidualStream(model)
        for layer in (shape.layer, shape.read_layer):
            stream.check_layer(layer)
        writing = _own_network(model, shape.decoder == "full", [stream.embedding, stream.head])
        # What comes after the block that the encoder reads would get no gradient, so it has none of its own.
        unread = [stream.embedding, stream.head, stream.last_norm, *stream.blocks[shape.read_layer + 1 :]]
        reading = _own_network(model, shape.encoder == "full", unread)
        head = copy.deepcopy(stream.head).requires_grad_(True) if shape.trains_head else None
        self._adapters = self._make_adapters()
        self._writer = self._stream_of(writing or model, head)
        self._reader = self._stream_of(reading or model, None)
        self.decoder = _Decoder(self._prompt_vectors(prompt), stream.width, writing, head)
        self.encoder = _Encoder(stream.width, reading)
        self.decoder.projection.requires_grad_(shape.trains_decoder_projection)
        self.decoder.prompt.requires_grad_(shape.trains_prompt and len(self.decoder.prompt) > 0)
        self.encoder.projection.requires_grad_(shape.trains_encoder_projection)

    @property
    def shard_units(self) -> list[nn.Module]:
        """The blocks of all networks; some are in two of them."""
        streams = (self._stream, self._writer, self._reader)
        return list({id(block): block for stream in streams for block in stream.blocks}.values())

    def train(self, mode: bool = True) -> "Lens":
        """Its parts are always in evaluation mode: dropout of a published model would depend on the rank."""
        super().train(False)
        self.training = mode
        return self

    def forward(self, batch: Batch, what: What = "terms") -> dict[str, Tensor]:
        """Values a row. `what` is computed:

        - `terms`: of the loss: `kl`, `lm`, `entropy`, `mse`; and `square`, the activation's squared norm.
        - `explain`: `tokens`, their `log_probs`, the activation `rebuilt` from them, and `square`.
        - `greedy`: the same with the likeliest token each time.
        - `score`: the same of the texts in batch["written"], differentiable, their `entropy`, and the relative `error`.
        - `activation`: the `activation` of the batch, or what leaves block `layer` at batch["position"] of
          batch["tokens"].
        - `check`: `plain` logits at the position, and those with the activation `inserted`.
        - `behaviour`: `kl`, the KL divergence of the model's output from its own with each of batch["values"] [rows,
          several, width] in the activation's place.
        - `read`: the activation `rebuilt` from the texts in batch["text"] [rows, columns], each with batch["length"]
          tokens.
        - `logit_lens`: `features`, the mean embedding of the T tokens that the model's last norm and head find
          likeliest in the activation.
        """
        functions: Mapping[str, Callable[[Batch], dict[str, Tensor]]] = {
            "terms": self._terms,
            "explain": self._explain,
            "greedy": partial(self._explain, greedy=True),
            "score": self._score,
            "activation": lambda batch: {"activation": self._activation(batch)},
            "check": self._check,
            "behaviour": self._behaviours,
            "read": lambda batch: {"rebuilt": self.rebuild(batch["text"], batch["length"])},
            "logit_lens": self._logit_lens,
        }
        return functions[what](batch)

    def explain(
        self,
        activations: Tensor,
        tau: Tensor,
        ids: Tensor,
        *,
        purpose: int | Tensor = OWN,
        greedy: bool = False,
        temperature: Tensor | None = None,
    ) -> Explanation:
        """Texts about activations [rows, width], drawn with noise keyed by `ids` [rows, 2] and `purpose`, whose
        gradients are those at the temperatures `tau` [rows]; `greedy`: the likeliest token each time, without noise.
        Logits are divided by `temperature` [rows], if there is one."""
        with self._with_adapter("decoder", self.shape.decoder):
            draws = None if greedy else KeyedDraws(self.shape.seed, purpose, ids, tau)
            vectors, length = self._prompted(activations), self.shape.t_text
            return write_text(self._writer, vectors, length, draws, temperature, has_cache=self.shape.kv_cache)

    def rebuild(self, text: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The activations [rows, width] that the encoder reads from texts: tokens [rows, T] or mixtures of them
        [rows, T, vocabulary]; with `lengths` [rows], from so many tokens of each."""
        vectors = self._as_read(text)
        with self._with_adapter("encoder", self.shape.encoder):
            read = self._reader.leaving(vectors, self.shape.read_layer)
        if lengths is None:
            hidden = read[:, -1]
        else:
            last = lengths - 1 + vectors.shape[1] - text.shape[1]
            hidden = read[torch.arange(len(read), device=read.device), last]
        projection = self.encoder.projection
        return wide(projection(hidden.to(projection.weight.dtype)))

    def _terms(self, batch: Batch) -> dict[str, Tensor]:
        activation = wide(self._activation(batch))
        tau, ids = batch["tau"], batch["ids"]
        other = wide(self._activation(batch, "other", "other_tokens", "other_position"))
        if self.shape.stop_gradient:
            with torch.no_grad():
                other_rebuilt = self.rebuild(self.explain(other, tau, ids, purpose=OTHER).mixtures)
            found = self.explain(activation, tau, ids)
            rebuilt = self.rebuild(found.mixtures)
        else:  # both in one pass
            is_own = torch.arange(2 * len(ids), device=ids.device) < len(ids)  # a list would be copied by the host
            purposes = torch.where(is_own, OWN, OTHER)[:, None]
            both = self.explain(torch.cat((activation, other)), tau.repeat(2), ids.repeat(2, 1), purpose=purposes)
            rebuilt, other_rebuilt = self.rebuild(both.mixtures).chunk(2)
            found = Explanation(*(part[: len(ids)] for part in both))
        delta = other - other_rebuilt
        square = activation.square().sum(1)
        return {
            "kl": self._behaviour(batch, activation, rebuilt + delta),
            "lm": self._fluency(found),
            "entropy": entropy_of(found.log_probs).mean(1),
            "mse": relative_error(activation, rebuilt),
            "square": square,
        }

    def _behaviour(self, batch: Batch, activation: Tensor, target: Tensor) -> Tensor:
        """KL divergence of the model's prediction with `target` in the activation's place from that with itself."""
        tokens, position, layer = batch["tokens"], batch["position"], self.shape.layer
        context = self._stream.read_context(tokens)
        with torch.no_grad():
            wanted = self._stream.logits(tokens, position, layer=layer, values=activation, context=context)
        changed = self._stream.logits(tokens, position, layer=layer, values=target, context=context)
        return kl_divergence(log_softmax(wide(wanted), -1), log_softmax(wide(changed), -1))

    @torch.no_grad()
    def _behaviours(self, batch: Batch) -> dict[str, Tensor]:
        tokens, position, layer = batch["tokens"], batch["position"], self.shape.layer
        context = self._stream.read_context(tokens)
        found = [
            log_softmax(wide(self._stream.logits(tokens, position, layer=layer, values=values, context=context)), -1)
            for values in (self._activation(batch), *batch["values"].unbind(1))
        ]
        return {"kl": torch.stack([kl_divergence(found[0], changed) for changed in found[1:]], 1)}

    @torch.no_grad()
    def _logit_lens(self, batch: Batch) -> dict[str, Tensor]:
        stream = self._stream
        logits = stream.head(stream.last_norm(self._activation(batch).to(stream.embedding.weight.dtype)))
        likeliest = logits.topk(min(self.shape.t_text, logits.shape[-1]), dim=-1).indices
        return {"features": wide(stream.embed(likeliest)).mean(1)}

    def _fluency(self, found: Explanation) -> Tensor:
        """The mean KL divergence of the decoder's distributions from those of the model, which has read the tokens
        before; of the first token only if a text begins with a token of its own for the model."""
        given, skipped = found.tokens[:, :-1], 1
        if self.shape.bos is not None:
            given, skipped = torch.cat((torch.full_like(given[:, :1], self.shape.bos), given), 1), 0
        if given.shape[1] == 0:
            return found.log_probs.sum((1, 2)) * 0
        with torch.no_grad():
            likely = log_softmax(wide(self._stream.logits(given)), -1)
        return kl_divergence(found.log_probs[:, skipped:], likely).mean(1)

    def _explain(self, batch: Batch, greedy: bool = False) -> dict[str, Tensor]:
        activation = wide(self._activation(batch))
        tau = batch.get("tau", torch.ones_like(activation[:, 0]))  # only gradients depend on it
        found = self.explain(activation, tau, batch["ids"], greedy=greedy, temperature=batch.get("temperature"))
        chosen = found.log_probs.gather(2, found.tokens[..., None])[..., 0]
        rebuilt = self.rebuild(found.mixtures)
        return {
            "tokens": found.tokens,
            "log_probs": chosen,
            "rebuilt": rebuilt,
            "square": activation.square().sum(1),
        }

    def _score(self, batch: Batch) -> dict[str, Tensor]:
        activation, written = wide(self._activation(batch)), batch["written"]
        prompted = self._prompted(activation)
        vectors = torch.cat((prompted, self._stream.embed(written[:, :-1])), 1)
        positions = torch.arange(prompted.shape[1] - 1, vectors.shape[1], device=written.device)
        with self._with_adapter("decoder", self.shape.decoder):
            logits = self._writer.logits(vectors, positions.expand(len(vectors), -1))
        log_probs = log_softmax(wide(logits), -1)
        rebuilt = self.rebuild(written)
        return {
            "log_probs": log_probs.gather(2, written[..., None])[..., 0],
            "entropy": entropy_of(log_probs),
            "rebuilt": rebuilt,
            "error": relative_error(activation, rebuilt),
            "square": activation.square().sum(1),
        }

    @torch.no_grad()
    def _activation(
        self, batch: Batch, name: str = "activation", tokens: str = "tokens", position: str = "position"
    ) -> Tensor:
        """What a batch has of this name, or what leaves the block."""
        if name in batch:
            return batch[name]
        hidden = self._stream.leaving(batch[tokens], self.shape.layer)
        return hidden[torch.arange(len(hidden), device=hidden.device), batch[position]]

    @torch.no_grad()
    def _check(self, batch: Batch) -> dict[str, Tensor]:
        tokens, position = batch["tokens"], batch["position"]
        inserted = self._stream.logits(tokens, position, layer=self.shape.layer, values=self._activation(batch))
        return {"plain": self._stream.logits(tokens, position), "inserted": inserted}

    def _prompted(self, activations: Tensor) -> Tensor:
        """The vectors [rows, columns, width] that the decoder begins with."""
        projection, prompt = self.decoder.projection, self.decoder.prompt
        dtype = self._stream.embedding.weight.dtype
        slot = projection(activations.to(projection.weight.dtype)).to(dtype)[:, None]
        vectors = prompt.to(dtype).expand(len(slot), -1, -1)
        return torch.cat((vectors[:, : self._slot], slot, vectors[:, self._slot :]), 1)

    def _as_read(self, text: Tensor) -> Tensor:
        """The vectors of a text as the model reads it, from its first token on."""
        vectors = self._stream.embed_mixture(text) if text.is_floating_point() else self._stream.embed(text)
        if self.shape.bos is None:
            return vectors
        first = torch.full((len(text), 1), self.shape.bos, device=text.device)
        return torch.cat((self._stream.embed(first).to(vectors.dtype), vectors), 1)

    def _with_adapter(self, name: str, kind: Kind) -> AbstractContextManager[None]:
        return self._adapters.used(name) if self._adapters is not None and kind == "lora" else nullcontext()

    def _make_adapters(self) -> NamedAdapters | None:
        shape, blocks = self.shape, self._stream.blocks
        parts: dict[str, Sequence[nn.Module]] = {}
        if shape.decoder == "lora":
            parts["decoder"] = blocks
        if shape.encoder == "lora":
            parts["encoder"] = blocks[: shape.read_layer + 1]
        return NamedAdapters(self.model, parts, Lora(shape.lora_rank, shape.lora_alpha), shape.seed) if parts else None

    def _stream_of(self, network: nn.Module, head: nn.Linear | None) -> ResidualStream:
        if head is not None:
            return ResidualStream(with_head(network, head))
        return self._stream if network is self.model else ResidualStream(network)

    def _prompt_vectors(self, prompt: tuple[Sequence[int], Sequence[int]]) -> Tensor:
        tokens = torch.tensor([*prompt[0], *prompt[1]], dtype=torch.int64)
        return self._stream.embed(tokens.to(next(self.model.parameters()).device)).detach().clone()


def relative_error(activation: Tensor, rebuilt: Tensor) -> Tensor:
    """The squared error of each row, divided by the squared norm of the activation."""
    return (wide(activation) - wide(rebuilt)).square().sum(1) / wide(activation).square().sum(1)


def _identity(width: int) -> nn.Linear:
    layer = nn.Linear(width, width)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(width))
        layer.bias.zero_()
    return layer


def _own_network(model: nn.Module, has_own: bool, shared: Sequence[nn.Module]) -> nn.Module | None:
    """A copy of the model that trains, but for what it shares with it."""
    if not has_own:
        return None
    frozen = set(model.parameters())
    own = copy_sharing(model, shared)
    for parameter in own.parameters():
        parameter.requires_grad_(parameter not in frozen)
    return own
