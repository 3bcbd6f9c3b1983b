"""`samestep sample RUN --text TEXT`: explanations of the activations in a text of one's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from samestep import LanguageModel, Trained, UserError, World
from samestep.core.config.bounds import Count, NotNegative
from samestep.core.config.checked import CheckedConfig
from samestep.core.output import print_text
from samestep.core.records import Json
from samestep.kit.language_model import first_tokens
from samestep.parallel.precision import autocast
from samestep.recipes.lens.activations import model_of
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.evaluation import context_of, visible
from samestep.recipes.lens.network import Lens, relative_error
from samestep.recipes.lens.task import LEARNER
from samestep.train.trained.batch_inference import in_order, my_batches, network_of

LEAST_TEMPERATURE = 1e-6
"""Logits that are divided by less may be infinite."""


@dataclass(frozen=True)
class SampleOptions(CheckedConfig):
    """Which activations to explain, and how often."""

    text: str | None = None
    """The text."""
    position: int | None = None
    """The token of the text whose activation is explained, counted from 0, or from the end if negative; by default the
    last one."""
    all: bool = False
    """Explain the activation of every token."""
    num_samples: Count = 1
    """Explanations of each activation."""
    temperature: NotNegative = 1.0
    """0 takes the likeliest token each time; above 1 explanations differ more."""
    batch_size: Count = 32
    """Explanations at once on a device."""

    def __post_init__(self) -> None:
        if not self.text:
            raise UserError("Give a text with --text.")
        if self.all and self.position is not None:
            raise UserError("Give --position or --all, not both.")
        if 0 < self.temperature < LEAST_TEMPERATURE:
            raise UserError(
                f"--temperature must be {LEAST_TEMPERATURE} or more, or 0 for the likeliest token each time, not "
                f"{self.temperature}."
            )


def explain_text(trained: Trained, options: SampleOptions, world: World) -> list[dict[str, Json]]:
    """One record for each explanation, in the order of the text, on every rank. Collective."""
    config: LensConfig = trained.config
    model = model_of(trained, world)
    tokens, positions = _chosen(model, options)
    requests = [(position, sample) for position in positions for sample in range(options.num_samples)]
    network, compute = network_of(trained, LEARNER, world.device)
    first = int(model.bos is not None)
    mine: list[tuple[int, dict[str, Json]]] = []
    for numbers in my_batches([1] * len(requests), options.batch_size, world):
        if not numbers:
            continue
        asked = torch.tensor([requests[number] for number in numbers], device=world.device)
        batch = _batch(tokens, asked, options.temperature)
        with torch.no_grad(), autocast(world.device, compute):
            batch["activation"] = network(batch, Lens.activation)["activation"]
            found = network(batch, Lens.explain if options.temperature else Lens.explain_greedily)
        errors = relative_error(batch["activation"], found["rebuilt"]).tolist()
        for number, written, error in zip(numbers, found["tokens"].tolist(), errors, strict=True):
            position, sample = requests[number]
            context = context_of(model, tokens, position)
            text = model.spell(written)
            about = {"position": position - first, "sample": sample, **context, "explanation": text, "error": error}
            mine.append((number, {**about, "layer": config.layer_l, "text": _line(context, text, error)}))
    return in_order(world.gather(mine))


def _chosen(model: LanguageModel, options: SampleOptions) -> tuple[list[int], list[int]]:
    """The tokens of the text as the model reads them, and which of them are explained."""
    own = model.encode(options.text or "")
    first = first_tokens(model)
    position = -1 if options.position is None else options.position
    if not -len(own) <= position < len(own):
        raise UserError(f"Set --position from 0 to {len(own) - 1}, or from the end; the text has {len(own)} tokens.")
    chosen = range(len(own)) if options.all else [position % len(own)]
    return [*first, *own], [len(first) + number for number in chosen]


def _batch(tokens: Sequence[int], asked: Tensor, temperature: float) -> dict[str, Tensor]:
    """Rows for pairs [rows, 2] of position and number of the sample."""
    rows = torch.tensor(tokens, device=asked.device).expand(len(asked), -1)
    found = {"tokens": rows, "position": asked[:, 0], "ids": asked.flip(1)}
    if temperature:
        found["temperature"] = torch.full((len(asked),), temperature, device=asked.device)
    return found


def _line(context: Mapping[str, str], text: str, error: float) -> str:
    before = visible(context["before"])
    shown = before if len(before) <= 40 else f"…{before[-39:]}"
    return f"{shown}[{visible(context['token'])}]  {visible(text)!r}  error {error:.3f}"


def show_explanations(trained: Trained, records: Sequence[Mapping[str, Json]]) -> None:
    """Print each activation's context, its explanation and the relative error."""
    for record in records:
        print_text(record["text"])
