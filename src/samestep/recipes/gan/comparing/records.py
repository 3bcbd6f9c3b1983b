"""The records that both generators are compared on.

A generator must not be asked for what it was trained on, so a record whose human text is in the training data of one of
the two is left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from samestep import Trained, UserError, noise
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import DataConfig, Record, Texts, load
from samestep.train.trained.trained_model import open_trained

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

    def texts_of(run: Trained) -> Texts:
        config: GanConfig = run.config
        return load(config.data, config.seed)

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
