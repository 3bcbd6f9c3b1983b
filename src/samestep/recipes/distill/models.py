"""Teacher and student: what each is, how it reads texts, and rows for feeds.

Rows are token ids, made when a row is asked for, with the teacher's vectors or the teacher's tokens beside. Names in a
batch: `text_ids` [rows, length] with `text_mask` (phase 1, teacher, validation); `query_ids` and `passage_ids` [rows,
each, length] with their masks (phase 2). A live teacher's tokens are `teacher_text_ids` and so on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from samestep import Batch, Bench, Bucketed, EncoderSource, Mixed, Trained, UserError, World, small_encoder
from samestep.core.errors import quoted
from samestep.kit.named_encoder import open_named_encoder
from samestep.models.text_tokenizer import TextTokenizer
from samestep.models.wide import wide
from samestep.recipes.distill.config import DistillConfig, ReadingConfig, StudentConfig, TeacherConfig
from samestep.recipes.distill.data import DistillData, Origin, Text, data_of, load_data

STUDENT, TEACHER = "", "teacher_"
"""What the names of a model's tokens begin with."""
_IDS, _LENGTHS, _MASK = "_ids", "_lengths", "_mask"
_ANY_LENGTH = 1 << 30
GPU_MULTIPLE = 32
"""On a GPU lengths are rounded up to multiples of this, so that few shapes are compiled."""
Readings = Mapping[str, "Reading"]
"""How the models read whose tokens rows have, by what the names of these begin with."""
MODEL = "model"
"""The name of the student's learner."""
_TOKENIZER_TEXTS = 20_000
"""Texts that the tokenizer of a built-in network is learned from, at most."""


@dataclass(frozen=True)
class Reading:
    """How a model reads texts."""

    tokenizer: TextTokenizer
    max_length: int
    query_instruction: str = ""
    """What stands before a query."""
    passage_instruction: str = ""

    def __call__(self, texts: Sequence[Text]) -> list[Tensor]:
        """Token ids of each text, special ones included; many at once are faster."""
        before = {True: self.query_instruction, False: self.passage_instruction}
        return self.tokenizer.encode_all([before[text.is_query] + text.text for text in texts], self.max_length)

    def lengths(self, texts: Sequence[Text]) -> list[int]:
        """How many tokens each text has, however long."""
        return list(map(len, replace(self, max_length=_ANY_LENGTH)(texts)))

    @property
    def shown(self) -> str:
        """For the banner."""
        texts = {"queries": self.query_instruction, "passages": self.passage_instruction}
        parts = [f"{name} {f'after {before!r}' if before else 'as they are'}" for name, before in texts.items()]
        return f"{', '.join(parts)}, up to {self.max_length} tokens"


@dataclass(frozen=True)
class Models:
    """The two models of a run, before any weight is read."""

    teacher: EncoderSource
    untrained: EncoderSource
    """The student as it is before training, without a projection."""
    student: EncoderSource
    """The student that is trained."""
    readings: dict[str, Reading]
    """How each reads."""
    dims: tuple[int, ...]
    """The sizes at which vectors are trained, whole vectors first."""


def open_models(config: DistillConfig, data: DistillData | None, world: World) -> Models:
    """The models that a configuration names. Collective, since they may be downloaded. Built-in ones learn their tokens
    from the data; without any, `data` may be None."""
    texts = [text.text for text in data.texts[: min(_TOKENIZER_TEXTS, data.held_out_texts.start)]] if data else []
    teacher = _open(config.teacher_model, "auto", config.teacher, "teacher.", texts, world)
    untrained = _open(config.student_model, "float32", config.student, "student.", texts, world)
    student = untrained.with_projection(teacher.dim) if config.use_projection else untrained.with_unit_vectors()
    if student.dim > teacher.dim:
        raise UserError(
            f"Set use_projection=true, or take a smaller student: its vectors have {student.dim} numbers, and those of "
            f"the teacher only {teacher.dim}."
        )
    too_large = [dim for dim in config.student.matryoshka_dims if dim > student.dim]
    if too_large:
        raise UserError(
            f"Set student.matryoshka_dims to {student.dim} or less, the size of the student's vectors; there is "
            f"{too_large[0]}."
        )
    readings = {
        STUDENT: _reading(untrained, config.student, "student."),
        TEACHER: _reading(teacher, config.teacher, "teacher."),
    }
    dims = tuple(sorted({student.dim, *config.student.matryoshka_dims}, reverse=True))
    return Models(teacher, untrained, student, readings, dims)


def models_of(bench: Bench, data: DistillData) -> Models:
    """The models of a stage; the banner says how they read. Collective."""
    config: DistillConfig = bench.config
    models = open_models(config, data, bench.world)
    for name, own, who in (("teacher", config.teacher, TEACHER), ("student", config.student, STUDENT)):
        stated = f", {own.attention} attention" if own.attention else ""
        stated += ", ends with the end token" if own.append_eos else ""
        bench.banner[f"{name} reads"] = models.readings[who].shown + stated
    return models


def _open(
    name: str | None,
    dtype: str,
    own: TeacherConfig | StudentConfig,
    section: str,
    texts: Sequence[str],
    world: World,
) -> EncoderSource:
    if name is None:
        return small_encoder(texts, **asdict(own.shape), max_length=own.max_length)
    return open_named_encoder(
        name, world, dtype=dtype, attention=own.attention, append_eos=own.append_eos, section=section
    )


def _reading(source: EncoderSource, own: TeacherConfig | StudentConfig, section: str) -> Reading:
    before = [_before(purpose, source, own, section) for purpose in ("query", "passage")]
    length = min(own.max_length, source.max_length)
    source.tokenizer.require_room(length, before, f"{section}max_length")
    return Reading(source.tokenizer, length, *before)


def _before(purpose: str, source: EncoderSource, own: ReadingConfig, section: str) -> str:
    """What stands before a query or a passage: what the settings say, or the folder."""
    text, name = (getattr(own, f"{purpose}_{kind}") for kind in ("instruction", "prompt_name"))
    if text is not None:
        return str(text)
    setting = f"{section}{purpose}_prompt_name"
    if name is None:
        try:
            return source.prompt(purpose)
        except UserError as problem:
            raise UserError(
                f"Set {setting}, or {section}{purpose}_instruction, which may be '', for {source.folder}: {problem}."
            ) from None
    if name not in source.prompts:
        known = quoted(source.prompts) or "none"
        raise UserError(f"Set {setting} to a prompt of {source.folder}, which are {known}; {name!r} is not among them.")
    return source.prompts[name]


def student_network(config: DistillConfig) -> nn.Module:
    """The student, for loading what was trained."""
    return open_models(config, load_data(config) if needs_data(config) else None, World.single()).student.network()


def as_trained(models: Models) -> EncoderSource:
    """The student with the instructions and the length that it is trained with, under the names that
    sentence-transformers looks for; nothing else of its base."""
    reading = models.readings[STUDENT]
    prompts = {"query": reading.query_instruction, "document": reading.passage_instruction}
    return replace(models.student, max_length=reading.max_length, prompts=prompts)


def trained_encoders(trained: Trained) -> dict[str, Callable[[World], EncoderSource]]:
    """The student of a run, without what it learned."""

    def open_student(world: World) -> EncoderSource:
        data = data_of(trained) if needs_data(trained.config) else None
        return as_trained(open_models(trained.config, data, world))

    return {MODEL: open_student}


def needs_data(config: DistillConfig) -> bool:
    """Whether a model is built-in, and hence learns its tokens from the data."""
    return config.teacher_model is None or config.student_model is None


def vectors_of(network: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Vectors [..., dim] of tokens [..., length], in float32 at least."""
    found = wide(network(ids.flatten(0, -2), mask.flatten(0, -2)))
    return found.view(*ids.shape[:-1], found.shape[-1])


class Vectors(Protocol):
    """The teacher's vectors of all texts."""

    def of(self, texts: Sequence[int]) -> Tensor:
        """[texts, dim], by the numbers of the texts."""


def by_length(texts: Sequence[Text]) -> list[int]:
    """The numbers of texts, longest first: those of a batch are of similar length, and what needs most memory comes
    first."""
    return sorted(range(len(texts)), key=lambda number: -len(texts[number].text))


class TextRows:
    """One text a row."""

    def __init__(
        self,
        texts: Sequence[Text],
        numbers: Sequence[int],
        readings: Readings,
        origins: Sequence[Origin],
        vectors: Vectors | None = None,
    ) -> None:
        """`numbers` are the texts that have a row, in this order."""
        self._texts, self._numbers, self._readings = texts, numbers, readings
        self._origins, self._vectors = origins, vectors
        self.lengths = [len(texts[number].text) for number in numbers]

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Tensor]]:
        numbers = [self._numbers[index] for index in indices]
        texts = [self._texts[number] for number in numbers]
        columns: dict[str, Sequence[Tensor]] = {f"{who}text{_IDS}": read(texts) for who, read in self._readings.items()}
        if self._vectors is not None:
            columns["teacher"] = self._vectors.of(numbers).unbind()
        return [dict(zip(columns, values)) for values in zip(*columns.values())]

    def origins(self) -> list[Origin]:
        return list(self._origins)


class RecordRows:
    """One record a row: its query, its positive, and its negatives, as many as `negatives`; -1 stands for none."""

    def __init__(
        self,
        data: DistillData,
        rows: Sequence[int],
        negatives: Sequence[Sequence[int]],
        width: int,
        readings: Readings,
        vectors: Vectors | None = None,
        scores: Sequence[Sequence[float]] | None = None,
    ) -> None:
        """`negatives` are passages by row of the table, of which `width` are taken; `scores` those of the positive and
        of each of them."""
        self._scores = scores
        self._data, self._rows, self._readings = data, rows, readings
        self._negatives, self._width, self._vectors = negatives, width, vectors
        self.lengths = [self._longest(row) for row in rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Tensor]]:
        chosen = [self._rows[index] for index in indices]
        numbers = [self._numbers(row) for row in chosen]
        every = [number for own in numbers for number in own]
        texts = [self._data.texts[number] for number in every]
        tokens = {who: read(texts) for who, read in self._readings.items()}
        vectors = None if self._vectors is None else self._vectors.of(every)
        ends = accumulate(map(len, numbers), initial=0)
        return [self._row(row, slice(*span), tokens, vectors) for row, span in zip(chosen, pairwise(ends))]

    def _row(
        self, row: int, own: slice, tokens: Mapping[str, Sequence[Tensor]], vectors: Tensor | None
    ) -> dict[str, Tensor]:
        """A record, whose query and passages are `own` among the tokens and vectors."""
        passages = self._passages(row)
        absent = 1 + self._width - len(passages)
        query = torch.tensor(self._data.table.rows[row].query)
        found = {"query": query, "passages": torch.tensor([*passages, *[-1] * absent])}
        if self._scores is not None:
            found["scores"] = torch.tensor([*self._scores[row][: len(passages)], *[0.0] * absent])
        for who, ids in tokens.items():
            found[f"{who}query{_IDS}"], *others = ids[own]
            found[f"{who}passage{_IDS}"] = torch.cat(others)
            found[f"{who}passage{_LENGTHS}"] = torch.tensor([*map(len, others), *[0] * absent])
        if vectors is not None:
            query_vector, *others = vectors[own]
            zeros = vectors.new_zeros(absent, vectors.shape[1])
            found |= {"teacher_query": query_vector, "teacher_passages": torch.cat([torch.stack(others), zeros])}
        return found

    def _numbers(self, row: int) -> list[int]:
        """The texts of a record: its query, and then its passages."""
        passages = (self._data.first_passage + passage for passage in self._passages(row))
        return [self._data.table.rows[row].query, *passages]

    def _passages(self, row: int) -> list[int]:
        return [self._data.table.rows[row].positive, *self._negatives[row][: self._width]]

    def _longest(self, row: int) -> int:
        return max(len(self._data.table.passages[passage]) for passage in self._passages(row))

    def origins(self) -> list[Origin]:
        return list(self._data.origins)


def pad_tokens(samples: Sequence[Mapping[str, Tensor]], readings: Readings, multiple: int = 1) -> Batch:
    """A batch: tokens padded and with masks, all else stacked."""
    batch: Batch = {}
    for name in samples[0]:
        values = [sample[name] for sample in samples]
        if name.endswith(_LENGTHS):
            continue
        if not name.endswith(_IDS):
            batch[name] = torch.stack(values)
            continue
        stem = name.removesuffix(_IDS)
        reading = readings[TEACHER if stem.startswith(TEACHER) else STUDENT]
        if f"{stem}{_LENGTHS}" in samples[0]:
            lengths = [sample[f"{stem}{_LENGTHS}"].tolist() for sample in samples]
            parts = [part for value, each in zip(values, lengths) for part in value.split(each)]
            ids, mask = _padded(parts, reading, multiple)
            shape = (len(samples), len(lengths[0]), -1)
            batch[name], batch[f"{stem}{_MASK}"] = ids.view(shape), mask.view(shape)
        else:
            batch[name], batch[f"{stem}{_MASK}"] = _padded(values, reading, multiple)
    return batch


def _padded(parts: Sequence[Tensor], reading: Reading, multiple: int) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(part) for part in parts])
    width = -(-max(1, int(lengths.max())) // multiple) * multiple
    width = min(width, reading.max_length)  # a model may have no positions behind it
    pad = reading.tokenizer.pad
    ids = pad_sequence(list(parts), batch_first=True, padding_value=pad)
    ids = torch.nn.functional.pad(ids, (0, width - ids.shape[1]), value=pad)
    return ids, (torch.arange(width) < lengths[:, None]).long()


def collate_for(readings: Readings, device: torch.device) -> Any:
    """The collate of a feed: lengths are those of a micro-batch's longest text, on a GPU rounded up."""
    return partial(pad_tokens, readings=readings, multiple=1 if device.type == "cpu" else GPU_MULTIPLE)


def mixed(sources: Sequence[Any], weights: Sequence[float], bucketed: bool) -> tuple[Any, Bucketed | None]:
    """Rows of several sources as one, and their order."""
    lengths = [length for source in sources for length in source.lengths]
    rows = sources[0] if len(sources) == 1 else Mixed(sources, weights)
    return rows, Bucketed(lengths) if bucketed else None
