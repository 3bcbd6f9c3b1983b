"""Teacher and student: what each is, how it reads texts, and the size of the vectors that the student learns."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samestep import EncoderSource, UserError, World, open_encoder, small_encoder
from samestep.recipes.distill.config import DistillConfig, ShapeConfig
from samestep.recipes.distill.data import DistillData, load_data
from samestep.recipes.distill.rows import STUDENT, TEACHER, Reading

MODEL = "model"
"""The name of the student's learner."""
_TOKENIZER_TEXTS = 20_000
"""Texts that the tokenizer of a built-in network is learned from, at most."""


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
    teacher = _open(config.teacher_model, "auto", config.teacher.shape, config.teacher.max_length, texts, world)
    untrained = _open(config.student_model, "float32", config.student.shape, config.student.max_length, texts, world)
    student = untrained.with_projection(teacher.dim) if config.use_projection else untrained
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
        STUDENT: _reading(untrained, config.student.max_length, config.student.query_instruction),
        TEACHER: _reading(teacher, config.teacher.max_length, config.teacher.query_instruction),
    }
    dims = tuple(sorted({student.dim, *config.student.matryoshka_dims}, reverse=True))
    return Models(teacher, untrained, student, readings, dims)


def _open(
    name: str | None, dtype: str, shape: ShapeConfig, max_length: int, texts: Sequence[str], world: World
) -> EncoderSource:
    if name is not None:
        return open_encoder(name, world=world, dtype=dtype)
    return small_encoder(
        texts,
        width=shape.width,
        layers=shape.layers,
        heads=shape.heads,
        vocabulary=shape.vocabulary,
        max_length=max_length,
    )


def _reading(source: EncoderSource, max_length: int, instruction: str | None) -> Reading:
    before_query = source.prompt("query") if instruction is None else instruction
    length = min(max_length, source.max_length)
    return Reading(source.tokenizer, length, before_query, source.prompt("passage", "document"))


def student_network(config: DistillConfig) -> nn.Module:
    """The student, for loading what was trained."""
    return open_models(config, load_data(config) if needs_data(config) else None, World.single()).student.network()


def needs_data(config: DistillConfig) -> bool:
    """Whether a model is built-in, and hence learns its tokens from the data."""
    return config.teacher_model is None or config.student_model is None


def vectors_of(network: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Vectors [..., dim] of tokens [..., length], in float32 at least."""
    found: Tensor = network(ids.flatten(0, -2), mask.flatten(0, -2))
    exact = found.to(torch.promote_types(found.dtype, torch.float32))
    return exact.view(*ids.shape[:-1], exact.shape[-1])
