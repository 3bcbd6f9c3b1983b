"""`samestep sample RUN --prompt TEXT`: explanations of the activations in texts of one's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from samestep import Trained, UserError, World
from samestep.core.config.bounds import Count, NotNegative
from samestep.core.records import Json
from samestep.kit.language_model import first_tokens
from samestep.kit.prompts import PromptOptions
from samestep.parallel.precision import autocast
from samestep.recipes.lens.activations import model_of
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.evaluation import context_of, visible
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
    """A file with one text per line, or a .jsonl file whose lines hold "text"."""
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


def explain_texts(trained: Trained, options: SampleOptions, world: World) -> list[dict[str, Json]]:
    """One record for each explanation, in the order of the texts, on every rank. Collective."""
    config: LensConfig = trained.config
    model = model_of(trained, world)
    prompts = options.requests().prompts
    first = first_tokens(model)
    texts = [[*first, *model.encode(prompt)] for prompt in prompts]
    places = [
        Place(number, position, sample)
        for number, tokens in enumerate(texts)
        for position in _chosen(len(tokens), len(first), options)
        for sample in range(options.samples)
    ]
    network, compute = network_of(trained, LEARNER, world.device)

    def explain(numbers: Sequence[int]) -> dict[str, Tensor]:
        batch = _batch(texts, [places[number] for number in numbers], options.temperature, model.pad, world.device)
        with autocast(world.device, compute):
            batch["activation"] = network(batch, Lens.activation)["activation"]
            found = network(batch, Lens.explain if options.temperature else Lens.explain_greedily)
        return {"tokens": found["tokens"], "error": relative_error(batch["activation"], found["rebuilt"])}

    lengths = [len(texts[place.text]) for place in places]
    found = compute_rows(lengths, options.batch_size, world, explain)
    records = []
    for place, written, error in zip(places, found["tokens"].tolist(), found["error"].tolist(), strict=True):
        context = context_of(model, texts[place.text], place.position)
        text = model.spell(written)
        about = {"prompt": prompts[place.text], "position": place.position - len(first), "sample": place.sample}
        rest = {**context, "explanation": text, "error": error, "layer": config.layer_l}
        records.append({**about, **rest, "text": _line(context, text, error)})
    return records


def _chosen(length: int, first: int, options: SampleOptions) -> list[int]:
    """Which tokens of a text of so many are explained; `first` of them begin every text."""
    own = length - first
    position = -1 if options.position is None else options.position
    if not -own <= position < own:
        raise UserError(f"Set --position from 0 to {own - 1}, or from the end; the text has {own} tokens.")
    return list(range(first, length)) if options.all else [first + position % own]


def _batch(
    texts: Sequence[Sequence[int]], places: Sequence[Place], temperature: float, pad: int, device: torch.device
) -> dict[str, Tensor]:
    """Rows for places; what is after a text is not read."""
    rows = pad_sequence([torch.tensor(texts[place.text]) for place in places], True, pad).to(device)
    ids = [(place.sample, (place.text << 32) + place.position) for place in places]
    positions = [place.position for place in places]
    found = {
        "tokens": rows,
        "position": torch.tensor(positions, device=device),
        "ids": torch.tensor(ids, device=device),
    }
    if temperature:
        found["temperature"] = torch.full((len(places),), temperature, device=device)
    return found


def _line(context: Mapping[str, str], text: str, error: float) -> str:
    before = visible(context["before"])
    shown = before if len(before) <= 40 else f"…{before[-39:]}"
    return f"{shown}[{visible(context['token'])}]  {visible(text)!r}  error {error:.3f}"
