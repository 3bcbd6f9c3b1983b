"""The teacher's vectors: computed once for all texts in a stage of their own, or live with every batch.

What the stage leaves is named by all that it depends on: the texts, the model and its weights, the instruction and the
length. A stage that trains with it compares that first.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from samestep import Batch, Bench, Dump, Frozen, MicroBatches, UserError
from samestep.core.records import read_object, write_json
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import DistillData, Text, digest_of, load_data
from samestep.recipes.distill.models import Models, open_models, vectors_of
from samestep.recipes.distill.rows import TEACHER, TextRows, by_length, collate_for
from samestep.train.artifacts.array_rows import ArrayRows

STAGE = "teacher"
"""The name of the stage, and of the frozen network."""
ARTIFACT, FIELD, KEY = "vectors", "vector", "key.json"
_BEGINNING = 1 << 20


class CachedVectors:
    """The teacher's vectors of all texts, by the numbers of these, memory-mapped."""

    def __init__(self, rows: ArrayRows, texts: Sequence[Text]) -> None:
        self._rows = rows
        places = {text: place for place, text in enumerate(cached_texts(texts))}
        self._places = np.array([places[text] for text in texts])

    def of(self, texts: Sequence[int]) -> Tensor:
        """[texts, dim], in float32 at least."""
        found = self.as_stored(texts)
        return found.to(torch.promote_types(found.dtype, torch.float32))

    def as_stored(self, texts: Sequence[int]) -> Tensor:
        """The same in the type of the cache, for many at once."""
        return self._rows.rows(self._places[np.asarray(texts, dtype=np.int64)])[FIELD]

    def origins(self) -> list[Path]:
        """What a resume compares."""
        return self._rows.origins()


def cached_texts(texts: Sequence[Text]) -> list[Text]:
    """What the teacher reads: each distinct text once, the longest first."""
    distinct = list(dict.fromkeys(texts))
    return [distinct[number] for number in by_length(distinct)]


class LiveTeacher:
    """The teacher itself, asked with every batch."""

    def __init__(self, bench: Bench, models: Models) -> None:
        self._network = load_teacher(bench, models)

    def __call__(self, batch: Batch) -> Batch:
        """The batch with the teacher's vectors in place of the teacher's tokens."""
        parts = [name.removesuffix("_ids") for name in batch if name.startswith(TEACHER) and name.endswith("_ids")]
        found = {_vector_name(part): self.vectors(batch, part) for part in parts}
        tokens = {f"{part}_{kind}" for part in parts for kind in ("ids", "mask")}
        return {name: value for name, value in batch.items() if name not in tokens} | found

    def vectors(self, batch: Batch, part: str) -> Tensor:
        """Of `teacher_text`, `teacher_query` or `teacher_passage`."""
        with self._network.inference() as network:
            return normalize(vectors_of(network, batch[f"{part}_ids"], batch[f"{part}_mask"]), dim=-1)

    def beside(self, micro_batches: MicroBatches) -> MicroBatches:
        """All micro-batches of a step with the teacher's vectors."""
        return micro_batches.changed(self)


def _vector_name(part: str) -> str:
    return {"teacher_text": "teacher", "teacher_query": "teacher_query", "teacher_passage": "teacher_passages"}[part]


def load_teacher(bench: Bench, models: Models) -> Frozen:
    """The teacher on the device; sharded where the student is."""
    config: DistillConfig = bench.config
    own = config.teacher.dtype
    dtype = ("float32" if bench.world.device.type == "cpu" else "bfloat16") if own == "auto" else own
    is_sharded = config.distributed.strategy == "fsdp"
    return bench.frozen(models.teacher.network, name=STAGE, shard=is_sharded, dtype=dtype)


def build_cache(bench: Bench) -> Dump:
    """The stage that computes the vectors of all texts, with all ranks; the longest texts first."""
    config: DistillConfig = bench.config
    data = load_data(config)
    texts, models = data.texts, open_models(config, data, bench.world)
    readings = {TEACHER: models.readings[TEACHER]}
    teacher = LiveTeacher(bench, models)
    weights = str(bench.first_launch.of_this_stage()[f"frozen/{STAGE}"])
    if bench.world.is_main:
        write_json(bench.artifact(KEY), {**key_of(config, models, texts), "weights": weights})
    distinct = cached_texts(texts)
    rows = TextRows(distinct, range(len(distinct)), readings, data.origins)
    fields: dict[str, tuple[Sequence[int], str]] = {FIELD: ((models.teacher.dim,), config.teacher.cache_dtype)}
    bench.screen.print(f"{len(distinct):,} texts for the teacher, vectors of {models.teacher.dim} numbers")
    return Dump(
        bench.evaluation_feed(rows, collate=collate_for(readings, bench.world.device)),
        lambda batch: {FIELD: teacher.vectors(batch, "teacher_text")},
        bench.array_artifact(ARTIFACT, len(distinct), fields),
    )


def key_of(config: DistillConfig, models: Models, texts: Sequence[Text]) -> dict[str, Any]:
    """What cached vectors depend on beside the weights."""
    reading = models.readings[TEACHER]
    return {
        "texts": digest_of(texts),
        "model": config.teacher_model or "built-in",
        "files": _weight_files(models.teacher.folder),
        "dim": models.teacher.dim,
        "instruction": [reading.query_instruction, reading.passage_instruction],
        "length": reading.max_length,
    }


def _weight_files(folder: Path | None) -> str:
    """A hash of the names, sizes and beginnings of a model's weight files; empty where weights are drawn."""
    if folder is None:
        return ""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".safetensors", ".bin"):
            with path.open("rb") as file:
                digest.update(f"{path.relative_to(folder)} {path.stat().st_size}".encode() + file.read(_BEGINNING))
    return digest.hexdigest()


def read_cache(bench: Bench, data: DistillData, models: Models) -> CachedVectors:
    """What the stage left, if it is for these texts and this teacher. Collective."""
    texts = data.texts

    def check() -> None:
        if not bench.world.is_main:
            return
        known, found = read_object(bench.artifact(KEY, stage=STAGE)), key_of(bench.config, models, texts)
        other = [name for name, value in found.items() if known.get(name) != value]
        if other:
            raise UserError(
                f"the teacher's vectors in {bench.artifact(ARTIFACT, stage=STAGE)} were computed with another value of "
                f"{', '.join(other)}; start a new run, or use teacher.mode=live"
            )

    bench.world.run_on_all_ranks("comparing the teacher's vectors", check)
    return CachedVectors(bench.read_array_artifact(ARTIFACT, stage=STAGE), texts)
