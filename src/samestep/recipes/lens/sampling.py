"""`samestep sample RUN --prompt TEXT`: explanations of the activations in texts of one's own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from samestep import LanguageModel, Model, Trained, UserError, World
from samestep.core.config.bounds import Count, NotNegative
from samestep.core.json_files import Json
from samestep.kit.language_model import first_tokens
from samestep.kit.prompts import PromptOptions
from samestep.parallel.precision import autocast
from samestep.recipes.lens.activations import model_of
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.evaluation import visible
from samestep.recipes.lens.language_model import context_of
from samestep.recipes.lens.network import Lens, relative_error
from samestep.recipes.lens.task import LEARNER
from samestep.train.trained.batch_inference import compute_rows, network_of

LEAST_TEMPERATURE = 1e-6
"""Logits that are divided by less may be infinite."""


@dataclass(frozen=True)
class SampleOptions(PromptOptions):
    """Which activations to explain, and how often."""

    needs_prompt = True
    prompt: str | None = None
    """The text whose activations are explained."""
    prompts: Path | None = None
    """A text file with one text per line, or records with a column `prompt` (or `text`)."""
    samples: Count = 1
    """Explanations of each activation."""
    position: int | None = None
    """The token of the text whose activation is explained, counted from 0, or from the end if negative; by default the
    last one."""
    all: bool = False
    """Explain the activation of every token."""
    temperature: NotNegative = 1.0
    """0 takes the likeliest token each time; above 1 explanations differ more."""
    batch_size: Count = 32
    """Explanations at once on a device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.all and self.position is not None:
            raise UserError("Give --position or --all, not both.")
        if 0 < self.temperature < LEAST_TEMPERATURE:
            raise UserError(
                f"--temperature must be {LEAST_TEMPERATURE} or more, or 0 for the likeliest token each time, not "
                f"{self.temperature}."
            )


class Place(NamedTuple):
    """An explanation that is asked for: the number of the text, the token in it as the model reads it, the number of
    the sample."""

    text: int
    position: int
    sample: int


@dataclass(frozen=True)
class Explained:
    """An explanation of one activation."""

    explanation: str
    tokens: list[int]
    """Those of the explanation."""
    activation: Tensor
    """[width]: what was explained."""
    rebuilt: Tensor
    """[width]: what the encoder rebuilds from the explanation, to be put in the activation's place or to steer with."""
    error: float
    """Its squared error, divided by the squared norm of the activation."""
    sample: int
    layer: int
    prompt: str | None = None
    """The text; None: the activation was given."""
    position: int | None = None
    """The token of the text, counted from 0."""


def explain_texts(trained: Trained, options: SampleOptions, world: World) -> list[dict[str, Json]]:
    """One record for each explanation, in the order of the texts, on every rank. Collective."""
    opened, prompts = _Opened.of(trained, world), options.requests().prompts
    positions = "all" if options.all else [-1 if options.position is None else options.position]
    tokens = [opened.tokens(prompt) for prompt in prompts]
    places = opened.places(tokens, positions, options.samples)
    layer, temperature = opened.config.layer_l, options.temperature
    found = opened.explain_places(prompts, tokens, places, layer, temperature, options.batch_size)
    records = []
    for place, one in zip(places, found, strict=True):
        context = context_of(opened.model, tokens[place.text], place.position)
        about = {"prompt": one.prompt, "position": one.position, "sample": one.sample}
        rest = {**context, "explanation": one.explanation, "error": one.error, "layer": one.layer}
        records.append({**about, **rest, "text": _line(context, one.explanation, one.error)})
    return records


def explain(
    model: Model,
    given: str | Sequence[str] | Tensor,
    *,
    positions: int | Sequence[int] | Literal["all"] = -1,
    layers: int | Sequence[int] | None = None,
    samples: int = 1,
    temperature: float = 1.0,
    batch_size: int = 32,
) -> list[Explained]:
    """`model.explain(...)`: explanations of the activations in texts, or of vectors [rows, width] of one's own.

    `positions` are tokens of each text, counted from 0, or from the end if negative. `layers` are those that the
    activations are read at, by default the one that the lens was trained for: what it says of others, and of vectors
    that are no activations of that layer, nothing has trained.
    """
    opened = _Opened.of(model.trained, model.world)
    options = SampleOptions(prompt="x", samples=samples, temperature=temperature, batch_size=batch_size)
    if isinstance(given, Tensor):
        return opened.explain_vectors(given, options)
    texts = [given] if isinstance(given, str) else list(given)
    chosen = [layers] if isinstance(layers, int) else layers or [opened.config.layer_l]
    tokens = [opened.tokens(text) for text in texts]
    places = opened.places(tokens, [positions] if isinstance(positions, int) else positions, samples)
    by_layer = [opened.explain_places(texts, tokens, places, layer, temperature, batch_size) for layer in chosen]
    return [one for found in by_layer for one in found]


@dataclass(frozen=True)
class _Opened:
    """A lens that explains."""

    config: LensConfig
    model: LanguageModel
    network: Lens
    compute: torch.dtype | None
    world: World

    @classmethod
    def of(cls, trained: Trained, world: World) -> "_Opened":
        network, compute = network_of(trained, LEARNER, world.device)
        assert isinstance(network, Lens)
        return cls(trained.config, model_of(trained, world), network, compute, world)

    def tokens(self, text: str) -> list[int]:
        return [*first_tokens(self.model), *self.model.encode(text)]

    def places(self, tokens: Sequence[Sequence[int]], positions: Sequence[int] | str, samples: int) -> list[Place]:
        """In the order of texts, tokens and samples."""
        first = len(first_tokens(self.model))
        return [
            Place(number, position, sample)
            for number, own in enumerate(tokens)
            for position in _chosen(len(own), first, positions)
            for sample in range(samples)
        ]

    def explain_places(
        self,
        texts: Sequence[str],
        tokens: Sequence[Sequence[int]],
        places: Sequence[Place],
        layer: int,
        temperature: float,
        batch_size: int,
    ) -> list[Explained]:
        """What leaves `layer` at these places of texts, whose `tokens` are given. Collective."""
        first = len(first_tokens(self.model))

        def batch_of(numbers: Sequence[int]) -> dict[str, Tensor]:
            chosen = [places[number] for number in numbers]
            rows = pad_sequence([torch.tensor(tokens[place.text]) for place in chosen], True, self.model.pad)
            position = torch.tensor([place.position for place in chosen])  # what is after it is not read
            ids = torch.tensor([(place.sample, (place.text << 32) + place.position) for place in chosen])
            return {"tokens": rows, "position": position, "ids": ids}

        found = self._explain(batch_of, [len(tokens[place.text]) for place in places], layer, temperature, batch_size)
        about = [(place.sample, layer, texts[place.text], place.position - first) for place in places]
        return [Explained(*values, *rest) for values, rest in zip(found, about, strict=True)]

    def explain_vectors(self, vectors: Tensor, options: SampleOptions) -> list[Explained]:
        """Vectors [rows, width], or one."""
        rows = vectors.detach().cpu().reshape(-1, vectors.shape[-1])
        places = [(number, sample) for number in range(len(rows)) for sample in range(options.samples)]
        if rows.shape[1] != self.network.width:
            raise UserError(f"Give vectors of {self.network.width} numbers, as activations have, not {rows.shape[1]}.")

        def batch_of(numbers: Sequence[int]) -> dict[str, Tensor]:
            chosen = [places[number] for number in numbers]
            given = torch.stack([rows[row] for row, _ in chosen]).to(torch.get_default_dtype())
            return {"activation": given, "ids": torch.tensor([(sample, row) for row, sample in chosen])}

        layer = self.config.layer_l
        found = self._explain(batch_of, [1] * len(places), layer, options.temperature, options.batch_size)
        return [Explained(*values, sample, layer) for values, (_, sample) in zip(found, places, strict=True)]

    def _explain(
        self,
        batch_of: Callable[[Sequence[int]], dict[str, Tensor]],
        lengths: Sequence[int],
        layer: int,
        temperature: float,
        batch_size: int,
    ) -> list[tuple[str, list[int], Tensor, Tensor, float]]:
        def explain_rows(numbers: Sequence[int]) -> dict[str, Tensor]:
            batch = {name: value.to(self.world.device) for name, value in batch_of(numbers).items()}
            if temperature:
                batch["temperature"] = torch.full((len(numbers),), temperature, device=self.world.device)
            with autocast(self.world.device, self.compute):
                batch["activation"] = self.network(batch, partial(Lens.activation, layer=layer))["activation"]
                found = self.network(batch, Lens.explain if temperature else Lens.explain_greedily)
            error = relative_error(batch["activation"], found["rebuilt"])
            kept = {"activation": batch["activation"].float(), "rebuilt": found["rebuilt"].float()}
            return {"tokens": found["tokens"], "error": error, **kept}

        found = compute_rows(lengths, batch_size, self.world, explain_rows)
        tokens = found["tokens"].tolist()
        texts = [self.model.spell(written) for written in tokens]
        return list(zip(texts, tokens, found["activation"], found["rebuilt"], found["error"].tolist(), strict=True))


def _chosen(length: int, first: int, positions: Sequence[int] | str) -> list[int]:
    """Which tokens of a text of so many are explained; `first` of them begin every text."""
    own = length - first
    if positions == "all":
        return list(range(first, length))
    chosen = [int(position) for position in positions]
    if wrong := [position for position in chosen if not -own <= position < own]:
        raise UserError(
            f"Set --position from 0 to {own - 1}, or from the end, not {wrong[0]}; the text has {own} tokens."
        )
    return [first + position % own for position in chosen]


def _line(context: Mapping[str, str], text: str, error: float) -> str:
    before = visible(context["before"])
    shown = before if len(before) <= 40 else f"…{before[-39:]}"
    return f"{shown}[{visible(context['token'])}]  {visible(text)!r}  error {error:.3f}"
