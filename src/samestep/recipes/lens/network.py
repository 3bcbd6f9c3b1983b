"""The network of the lens: a decoder puts an activation of a frozen model into words, an encoder rebuilds it from them.

    lens = Lens(model, LensShape(layer=6, t_text=10), prompt=(before, after))
    rows = lens(batch)                  # the terms of the loss, one value a row
    texts = lens(batch, Lens.explain)   # anything else that it computes is a method with a name

What it computes is made of three things: `write`, the decoder's texts about activations; `rebuild`, what the encoder
makes of texts; and `_prediction`, what the frozen model says with a vector in the activation's place.

The frozen model is one module, used for the decoder and the encoder too where these have no layers of their own. It
always computes with the embeddings of the frozen model, so that a token means the same to the decoder, the encoder and
the model.
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from samestep import Batch, noise, policy
from samestep.models.residual_stream import ResidualStream, with_head
from samestep.models.wide import wide
from samestep.recipes.lens.parts import (
    Decoder,
    Encoder,
    Explanation,
    KeyedDraws,
    Kind,
    LensShape,
    NamedAdapters,
    trained_copy,
    write_text,
)

OWN, OTHER = noise.purpose("lens"), noise.purpose("lens/other")
"""What noise is for: the text about a row's activation, and that about the one it is compared with."""
Computation = Callable[["Lens", Batch], dict[str, Tensor]]
"""A method of `Lens` that gives values a row by name, such as `Lens.explain`."""


class Lens(nn.Module):
    """A frozen model, and the decoder and the encoder around it."""

    has_frozen_base = True
    is_recordable = True
    """Noise is keyed by tensors of the batch, and there is no dropout (see parallel/loss_graphs.py)."""

    def __init__(self, model: nn.Module, shape: LensShape, prompt: tuple[Sequence[int], Sequence[int]]) -> None:
        """`prompt` has the tokens of the decoder's prompt before and after the activation."""
        super().__init__()
        self.shape = shape
        self.model = model.requires_grad_(False).eval()
        stream = self._stream = ResidualStream(model)
        for layer in (shape.layer, shape.read_layer):
            stream.check_layer(layer)
        shared = [stream.embedding, stream.head]
        writing = trained_copy(model, shared) if shape.decoder == "full" else None
        # What comes after the block that the encoder reads would get no gradient, so it has none of its own.
        unread = [*shared, stream.last_norm, *stream.blocks[shape.read_layer + 1 :]]
        reading = trained_copy(model, unread) if shape.encoder == "full" else None
        head = copy.deepcopy(stream.head).requires_grad_(True) if shape.trains_head else None
        self._adapters = _adapters(model, stream.blocks, shape)
        self._writer = self._stream_of(writing, head)
        self._reader = self._stream_of(reading, None)
        tokens = torch.tensor([*prompt[0], *prompt[1]], dtype=torch.int64, device=next(model.parameters()).device)
        self.decoder = Decoder(stream.embed(tokens).detach().clone(), len(prompt[0]), writing, head)
        self.encoder = Encoder(stream.width, reading)
        self.decoder.projection.requires_grad_(shape.trains_decoder_projection)
        self.decoder.prompt.requires_grad_(shape.trains_prompt and len(tokens) > 0)
        self.encoder.projection.requires_grad_(shape.trains_encoder_projection)

    def _stream_of(self, own: nn.Module | None, head: nn.Linear | None) -> ResidualStream:
        if head is not None:
            return ResidualStream(with_head(own or self.model, head))
        return self._stream if own is None else ResidualStream(own)

    @property
    def width(self) -> int:
        """Numbers in an activation."""
        return self._stream.width

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

    def forward(self, batch: Batch, compute: Computation | None = None) -> dict[str, Tensor]:
        """What one of the methods below computes of a batch; by default the terms of the loss. DDP and FSDP see only
        what is called through here."""
        return (compute or Lens.terms)(self, batch)

    # What it computes, each from a batch.

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Of the loss: `kl`, `lm`, `entropy`, `mse`; and `square`, the activation's squared norm."""
        activation = wide(self._activation(batch))
        if "other" in batch:
            other = wide(batch["other"])
        else:
            other = wide(self._leaving(batch["other_tokens"], batch["other_position"]))
        found, rebuilt, other_rebuilt = self._round_trips(activation, other, batch)
        delta = other - other_rebuilt
        return {
            "kl": self._behaviour(batch, activation, rebuilt + delta),
            "lm": self._fluency(found),
            "entropy": policy.entropy(found.log_probs).mean(1),
            "mse": relative_error(activation, rebuilt),
            "square": activation.square().sum(1),
        }

    def explain(self, batch: Batch) -> dict[str, Tensor]:
        """`tokens`, their `log_probs`, the activation `rebuilt` from them, and `square`. Logits are divided by
        batch["temperature"], if there is one."""
        activation = wide(self._activation(batch))
        tau = batch.get("tau", torch.ones_like(activation[:, 0]))  # only gradients depend on it
        return self._explained(batch, activation, KeyedDraws(self.shape.seed, OWN, batch["ids"], tau))

    def explain_greedily(self, batch: Batch) -> dict[str, Tensor]:
        """The same as `explain` with the likeliest token each time."""
        return self._explained(batch, wide(self._activation(batch)), None)

    def score(self, batch: Batch) -> dict[str, Tensor]:
        """The same as `explain` of the texts in batch["written"], differentiable, their `entropy`, and the relative
        `error`."""
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
            "entropy": policy.entropy(log_probs),
            "rebuilt": rebuilt,
            "error": relative_error(activation, rebuilt),
            "square": activation.square().sum(1),
        }

    def read(self, batch: Batch) -> dict[str, Tensor]:
        """The activation `rebuilt` from the texts in batch["text"] [rows, columns], each with batch["length"]
        tokens."""
        return {"rebuilt": self.rebuild(batch["text"], batch["length"])}

    def activation(self, batch: Batch, layer: int | None = None) -> dict[str, Tensor]:
        """The `activation` of the batch, or what leaves a block at batch["position"] of batch["tokens"]: that of the
        lens, or block `layer`."""
        return {"activation": self._activation(batch, layer)}

    @torch.no_grad()
    def reinsertion(self, batch: Batch) -> dict[str, Tensor]:
        """`plain` logits at the position, and those with the activation `inserted`."""
        tokens, position = batch["tokens"], batch["position"]
        inserted = self._stream.logits(tokens, position, layer=self.shape.layer, values=self._activation(batch))
        return {"plain": self._stream.logits(tokens, position), "inserted": inserted}

    @torch.no_grad()
    def behaviour(self, batch: Batch) -> dict[str, Tensor]:
        """`kl`, the KL divergence of the model's output from its own with each of batch["values"] [rows, several,
        width] in the activation's place."""
        context = self._stream.read_context(batch["tokens"])
        wanted = self._prediction(batch, self._activation(batch), context)
        changed = [self._prediction(batch, values, context) for values in batch["values"].unbind(1)]
        return {"kl": torch.stack([policy.kl_divergence(wanted, each) for each in changed], 1)}

    @torch.no_grad()
    def logit_lens(self, batch: Batch) -> dict[str, Tensor]:
        """`features`, the mean embedding of the T tokens that the model's last norm and head find likeliest in the
        activation."""
        stream = self._stream
        logits = stream.head(stream.last_norm(self._activation(batch).to(stream.embedding.weight.dtype)))
        likeliest = logits.topk(min(self.shape.t_text, logits.shape[-1]), dim=-1).indices
        return {"features": wide(stream.embed(likeliest)).mean(1)}

    # What that is made of.

    def write(self, activations: Tensor, draws: KeyedDraws | None, temperature: Tensor | None = None) -> Explanation:
        """The decoder's texts about activations [rows, width]; without `draws`, the likeliest token each time. Logits
        are divided by `temperature` [rows], if there is one."""
        with self._with_adapter("decoder", self.shape.decoder):
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
            hidden = _at(read, lengths - 1 + vectors.shape[1] - text.shape[1])
        projection = self.encoder.projection
        return wide(projection(hidden.to(projection.weight.dtype)))

    def _round_trips(self, activation: Tensor, other: Tensor, batch: Batch) -> tuple[Explanation, Tensor, Tensor]:
        """The texts about the activation, what is rebuilt from them, and what is rebuilt of the other one."""
        seed, tau, ids = self.shape.seed, batch["tau"], batch["ids"]
        if self.shape.stop_gradient:
            with torch.no_grad():
                other_rebuilt = self.rebuild(self.write(other, KeyedDraws(seed, OTHER, ids, tau)).mixtures)
            found = self.write(activation, KeyedDraws(seed, OWN, ids, tau))
            return found, self.rebuild(found.mixtures), other_rebuilt
        # Both in one pass.
        is_own = torch.arange(2 * len(ids), device=ids.device) < len(ids)  # a list would be copied by the host
        purposes = torch.where(is_own, OWN, OTHER)[:, None]
        draws = KeyedDraws(seed, purposes, ids.repeat(2, 1), tau.repeat(2))
        both = self.write(torch.cat((activation, other)), draws)
        rebuilt, other_rebuilt = self.rebuild(both.mixtures).chunk(2)
        return Explanation(*(part[: len(ids)] for part in both)), rebuilt, other_rebuilt

    def _explained(self, batch: Batch, activation: Tensor, draws: KeyedDraws | None) -> dict[str, Tensor]:
        found = self.write(activation, draws, batch.get("temperature"))
        return {
            "tokens": found.tokens,
            "log_probs": found.log_probs.gather(2, found.tokens[..., None])[..., 0],
            "rebuilt": self.rebuild(found.mixtures),
            "square": activation.square().sum(1),
        }

    def _behaviour(self, batch: Batch, activation: Tensor, target: Tensor) -> Tensor:
        """KL divergence of the model's prediction with `target` in the activation's place from that with itself."""
        context = self._stream.read_context(batch["tokens"])
        with torch.no_grad():
            wanted = self._prediction(batch, activation, context)
        return policy.kl_divergence(wanted, self._prediction(batch, target, context))

    def _prediction(self, batch: Batch, values: Tensor, context: Any) -> Tensor:
        """Log-probabilities of the frozen model at the position, with `values` in the activation's place."""
        tokens, position, layer = batch["tokens"], batch["position"], self.shape.layer
        logits = self._stream.logits(tokens, position, layer=layer, values=values, context=context)
        return log_softmax(wide(logits), -1)

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
        return policy.kl_divergence(found.log_probs[:, skipped:], likely).mean(1)

    def _activation(self, batch: Batch, layer: int | None = None) -> Tensor:
        if "activation" in batch:
            return batch["activation"]
        return self._leaving(batch["tokens"], batch["position"], layer)

    @torch.no_grad()
    def _leaving(self, tokens: Tensor, position: Tensor, layer: int | None = None) -> Tensor:
        return _at(self._stream.leaving(tokens, self.shape.layer if layer is None else layer), position)

    def _prompted(self, activations: Tensor) -> Tensor:
        return self.decoder.prompted(activations, self._stream.embedding.weight.dtype)

    def _as_read(self, text: Tensor) -> Tensor:
        """The vectors of a text as the model reads it, from its first token on."""
        vectors = self._stream.embed_mixture(text) if text.is_floating_point() else self._stream.embed(text)
        if self.shape.bos is None:
            return vectors
        first = torch.full((len(text), 1), self.shape.bos, device=text.device)
        return torch.cat((self._stream.embed(first).to(vectors.dtype), vectors), 1)

    def _with_adapter(self, name: str, kind: Kind) -> AbstractContextManager[None]:
        return self._adapters.used(name) if self._adapters is not None and kind == "lora" else nullcontext()


def _adapters(model: nn.Module, blocks: Sequence[nn.Module], shape: LensShape) -> NamedAdapters | None:
    parts: dict[str, Sequence[nn.Module]] = {}
    if shape.decoder == "lora":
        parts["decoder"] = blocks
    if shape.encoder == "lora":
        parts["encoder"] = blocks[: shape.read_layer + 1]
    return NamedAdapters(model, parts, shape.lora, shape.seed) if parts else None


def _at(hidden: Tensor, positions: Tensor) -> Tensor:
    """One column of each row [rows, columns, width]."""
    return hidden[torch.arange(len(hidden), device=hidden.device), positions]


def relative_error(activation: Tensor, rebuilt: Tensor) -> Tensor:
    """The squared error of each row, divided by the squared norm of the activation."""
    return (wide(activation) - wide(rebuilt)).square().sum(1) / wide(activation).square().sum(1)
