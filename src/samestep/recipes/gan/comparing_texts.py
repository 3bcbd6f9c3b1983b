"""The texts that are compared: which records both generators get, and what they write for them.

A generator must not be asked for what it was trained on, so a record whose human text is in the training data of one of
the two is left out. Both write with the same keyed noise, and in the same batches at any number of ranks: the texts are
those of one process, bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from samestep import GenerationConfig, Trained, UserError, World, noise
from samestep.models.decoding import position_limit
from samestep.parallel.precision import COMPUTE_DTYPES, autocast, cast_for_good
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import DataConfig, Record, Texts, load
from samestep.recipes.gan.players import PromptWriter, generator_without_stage, open_player
from samestep.recipes.gan.task import GENERATOR
from samestep.train.pretrained.trained_model import open_trained

_CHOICE = noise.purpose("gan/compare/choice")


@dataclass(frozen=True)
class ChosenRecords:
    """The records that are compared on."""

    name: str
    """Where they come from."""
    records: list[Record]
    ids: list[int]
    """Their numbers among all that could have been chosen, which key the noise."""
    notes: list[str]
    """What a reader should know about the choice."""


def choose_records(
    trained: Sequence[Trained], file: str | None, data: DataConfig, samples: int | None
) -> ChosenRecords:
    """The held-out records of the first run, or those of a file, without what one of the runs was trained on.

    `data` says how the file is read. Every rank reads them, with the same result.
    """
    read: dict[tuple[DataConfig, int], Texts] = {}

    def texts_of(run: Trained) -> Texts:
        config: GanConfig = run.config
        key = config.data, config.seed
        return read[key] if key in read else read.setdefault(key, load(*key))

    # As they were trained: a setting on the command line must not split the data in another way.
    runs = [open_trained(str(one.source)) for one in trained]
    if file is None:
        name, found = f"held-out records of {label(runs[0])}", list(texts_of(runs[0]).validation.records)
    else:
        texts = load(replace(data, path=file, limit=None), runs[0].config.seed)
        name, found = file, [*texts.train.records, *texts.validation.records]
    kept, notes = _without_training(list(enumerate(found)), runs, texts_of)
    if not kept:
        raise UserError(
            f"There is no record left to compare on ({len(found)} {name}; {'; '.join(notes) or 'it has none'}); name "
            "others with --records FILE."
        )
    chosen = _some(kept, samples, runs[0].config.seed)
    if len(chosen) < len(kept):
        notes.append(f"{len(chosen)} of {len(kept)} records are used (--samples)")
    return ChosenRecords(name, [record for _, record in chosen], [number for number, _ in chosen], notes)


def _without_training(
    found: list[tuple[int, Record]], runs: Sequence[Trained], texts_of: Callable[[Trained], Texts]
) -> tuple[list[tuple[int, Record]], list[str]]:
    """The records whose human text no run was trained on, and sentences about it."""
    notes: list[str] = []
    for run in runs:
        try:
            known = texts_of(run).train.records
        except UserError as error:
            notes.append(f"nothing is left out for {label(run)}, whose training data cannot be read ({error})")
            continue
        humans, prompts = {record.human for record in known}, {record.prompt for record in known}
        before = len(found)
        found = [(number, record) for number, record in found if record.human not in humans]
        if len(found) < before:
            notes.append(f"{before - len(found)} left out: {label(run)} was trained on them")
        repeated = sum(record.prompt in prompts for _, record in found)
        if repeated:
            notes.append(f"{repeated} have a prompt that {label(run)} was trained on, with another human text")
    return found, list(dict.fromkeys(notes))


def _some(kept: Sequence[tuple[int, Record]], samples: int | None, seed: int) -> list[tuple[int, Record]]:
    """So many of the records, drawn by the seed, in their order: a file may be sorted by group."""
    numbers = torch.tensor([number for number, _ in kept])
    order = noise.uniform(seed, _CHOICE, numbers, dtype=torch.float64).argsort(stable=True)
    return [kept[place] for place in sorted(order[:samples].tolist())]


def label(trained: Trained) -> str:
    """A name of a trained model for people: its run, stage and step."""
    where = trained.run.path.name if trained.run else trained.source.name
    step = trained.source.name.removeprefix("step_").lstrip("0")
    return f"{where} ({trained.stage}, step {step or 0})" if step.isdigit() and trained.stage else where


@dataclass(frozen=True)
class Written:
    """What a generator wrote, one text for each record."""

    texts: list[str]
    cut: list[bool]
    """Whether it went on to the limit of tokens without an end."""
    cut_prompts: int = 0
    """Prompts that were longer than the network takes."""


def write_texts(
    trained: Trained, chosen: ChosenRecords, how: GenerationConfig, seed: int, rows: int, world: World
) -> Written:
    """Complete the prompts, `rows` at a time. Collective; all ranks get all texts."""
    config: GanConfig = trained.config
    player = open_player(config.generator, config.model_name, world)
    network, compute = network_of(trained, GENERATOR, world.device)
    write_prompt = PromptWriter(player, position_limit(network), how.max_new_tokens)
    written = [write_prompt(record.prompt) for record in chosen.records]
    prompts = [prompt.tokens for prompt in written]
    generator = generator_without_stage(player, "gan/compare", how, seed, world, rows)
    ids = torch.tensor([[0, number] for number in chosen.ids])
    mine: dict[int, tuple[str, bool]] = {}
    for batch in my_batches([len(prompt) for prompt in prompts], rows, world):
        with autocast(world.device, compute):
            made = generator(network, [prompts[number] for number in batch], ids[batch], step=0)
        texts = [player.decode(tokens) for tokens in made.to_lists()]
        mine |= zip(batch, zip(texts, (~made.finished).tolist(), strict=True), strict=True)
    found = in_order(world.gather(list(mine.items())))
    return Written([text for text, _ in found], [cut for _, cut in found], sum(prompt.is_cut for prompt in written))


def network_of(trained: Trained, learner: str, device: torch.device) -> tuple[nn.Module, torch.dtype | None]:
    """A network that is only used, and the type that it computes in where that is not the type of its weights."""
    network, compute = trained.network(learner, device), compute_dtype(trained.config, device)
    cast_for_good(network, compute)
    return network, compute


def compute_dtype(config: GanConfig, device: torch.device) -> torch.dtype | None:
    """The type of mixed precision that a run was trained with; None on a CPU."""
    return None if device.type == "cpu" else COMPUTE_DTYPES.get(config.distributed.mixed_precision)


def my_batches(lengths: Sequence[int], rows: int, world: World) -> list[list[int]]:
    """The batches of this rank, of rows of similar length; every rank has as many, though some may be empty.

    Batches are made first and then shared out, so that what is computed together does not depend on the ranks.
    """
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    batches = [order[start : start + rows] for start in range(0, len(order), rows)]
    batches += [[] for _ in range(-len(batches) % world.size)]
    return batches[world.rank :: world.size]


def in_order(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """What the ranks computed, as pairs of number and value: the values by number."""
    return [value for _, value in sorted((pair for part in parts for pair in part), key=lambda pair: pair[0])]
