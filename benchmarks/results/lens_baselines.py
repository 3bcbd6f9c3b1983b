"""What a lens is compared with beside the baselines of the recipe: other ways to put an activation into T tokens, and
what its context says about it.

Each gives a vector of features for a row; a ridge regression, fitted on training activations, makes the activation of
it (`measuring.fit`). All read with the frozen model alone:

tuned lens      the T likeliest tokens after an affine map of the activation, which is trained so that the model's last
                norm and head predict what the model predicts; features: the mean of their embeddings
patchscopes     the T likeliest tokens of the model itself after `cat -> cat; 1135 -> 1135; hello -> hello; x ->`, with
                the activation in the place of what leaves its block at `x`; features: the model's reading of the tokens
context         the model's reading of the last tokens of the context, which no lens is given: what is known about an
                activation without it
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from samestep import LanguageModel, policy
from samestep.models.residual_stream import ResidualStream
from samestep.recipes.lens.measuring import fit
from samestep.recipes.lens.task import last_tokens

_PROMPT = ("cat -> cat; 1135 -> 1135; hello -> hello; ", "x", " ->")
Features = Callable[[dict[str, Tensor]], Tensor]
"""Of rows with activation, tokens and position: [rows, any]."""


class FrozenReader:
    """The frozen model, as the baselines use it."""

    def __init__(self, model: LanguageModel, layer: int, length: int, device: torch.device) -> None:
        """`length` is the number of tokens of a text."""
        self.model, self.layer, self.length, self.device = model, layer, length, device
        self.stream = ResidualStream(model.network().to(device).eval().requires_grad_(False))
        self._translator: nn.Linear | None = None

    def reading(self, texts: Tensor) -> Tensor:
        """What leaves the block at the last token of texts [rows, T]."""
        if self.model.bos is not None:
            texts = torch.cat((torch.full_like(texts[:, :1], self.model.bos), texts), 1)
        return self.stream.leaving(texts, self.layer)[:, -1].float()

    def context(self, batch: dict[str, Tensor], count: int) -> Tensor:
        """The reading of the last tokens up to the position."""
        return self.reading(last_tokens(batch["tokens"], batch["position"], count))

    def tuned_lens(self, batch: dict[str, Tensor]) -> Tensor:
        assert self._translator is not None, "it is trained first"
        activation = batch["activation"]
        return self._mean_embedding(activation + self._translator(activation))

    def train_tuned_lens(self, batches: list[dict[str, Tensor]], steps: int) -> tuple[float, float]:
        """Returns the KL divergence, in nats, of the first and the last steps."""
        stream, width = self.stream, self.stream.width
        self._translator = translator = nn.Linear(width, width).to(self.device)
        nn.init.zeros_(translator.weight)
        nn.init.zeros_(translator.bias)
        optimizer = torch.optim.Adam(translator.parameters(), lr=1e-3)
        losses = []
        for step in range(steps):
            batch = batches[step % len(batches)]
            activation = batch["activation"]
            with torch.no_grad():
                wanted = log_softmax(stream.logits(batch["tokens"], batch["position"]).float(), -1)
            with torch.enable_grad():
                found = stream.head(stream.last_norm(activation + translator(activation)))
                loss = policy.kl_divergence(wanted, log_softmax(found.float(), -1)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.param_groups[0]["lr"] = 1e-3 * (1 - step / steps)
                optimizer.step()
            losses.append(float(loss.detach()))
        tenth = max(1, steps // 10)
        return sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth

    def patchscopes(self, batch: dict[str, Tensor]) -> Tensor:
        return self.reading(self.patched_text(batch["activation"]))

    def patched_text(self, activation: Tensor) -> Tensor:
        """The likeliest tokens [rows, T] after the prompt with the activation in it."""
        before, slot, after = (self.model.encode(part) for part in _PROMPT)
        first = [self.model.bos] if self.model.bos is not None else []
        place = len(first) + len(before) + len(slot) - 1
        prompt = torch.tensor([*first, *before, *slot, *after], device=self.device)
        tokens = prompt.expand(len(activation), -1)

        def exchange(block: nn.Module, args: Any, output: Any) -> Any:
            hidden = output if isinstance(output, Tensor) else output[0]
            hidden = hidden.clone()
            hidden[:, place] = activation.to(hidden.dtype)
            return hidden if isinstance(output, Tensor) else (hidden, *output[1:])

        handle = self.stream.blocks[self.layer].register_forward_hook(exchange)
        try:
            for _ in range(self.length):
                last = torch.full((len(tokens),), tokens.shape[1] - 1, device=self.device)
                tokens = torch.cat((tokens, self.stream.logits(tokens, last).argmax(-1)[:, None]), 1)
        finally:
            handle.remove()
        return tokens[:, len(prompt) :]

    def _mean_embedding(self, hidden: Tensor) -> Tensor:
        stream = self.stream
        likeliest = stream.head(stream.last_norm(hidden)).topk(self.length, -1).indices
        return stream.embed(likeliest).float().mean(1)


def rebuilt_by_ridge(fit_features: Tensor, fit_activations: Tensor, features: Tensor) -> Tensor:
    """The activations [rows, width] that features [rows, any] give."""
    return fit(fit_features, fit_activations, features.device).linear(features)
