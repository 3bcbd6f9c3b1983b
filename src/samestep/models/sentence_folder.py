"""A sentence encoder in a folder of sentence-transformers or of transformers, or on the Hub: what it says of itself.

    teacher = open_encoder("infly/inf-retriever-v1-pro", world=bench.world)
    frozen = bench.frozen(teacher.network, name="teacher", shard=True)
    student = open_encoder("models/all-mpnet-base-v2").with_projection(teacher.dim)
    learner = bench.learner(student.network)

No weight is read before a learner or a frozen network asks for it, and no code from a folder is run.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samestep.core.errors import UserError
from samestep.models.causal_folder import DTYPES
from samestep.models.folder_weights import FolderWeights, StoredTensor, find_weights
from samestep.models.hub import resolve_model
from samestep.models.hub_download import CONFIG
from samestep.models.hub_modules import MODULES
from samestep.models.model_files import FilesByPurpose, by_name, tokenizer_in, weights_in
from samestep.models.sentence_encoder import SentenceEncoder, with_projection, with_unit_vectors
from samestep.models.sentence_files import (
    SETTINGS,
    TRANSFORMER_SETTINGS,
    SentenceFiles,
    prompt_for,
    read_sentence_files,
)
from samestep.models.text_tokenizer import TextTokenizer, read_tokenizer
from samestep.models.transformer_plan import TransformerPlan, position_limit
from samestep.world.world import World

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncoderSource:
    """An encoder that was checked, before any weight is read."""

    network: Callable[[], SentenceEncoder]
    """Builds the network for `bench.learner` or `bench.frozen`, which set its weights; `load` is for all other uses."""
    tokenizer: TextTokenizer
    """Makes the network's input of texts."""
    dim: int
    """The length of its vectors."""
    max_length: int
    """How many tokens of a text it reads."""
    config: Any
    """The configuration of its transformer, an object of transformers."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """What stands before a text, by its purpose, such as `query`."""
    default_prompt: str | None = None
    """The prompt for texts without a purpose."""
    similarity: str = "cosine"
    """How its vectors are compared, as sentence-transformers names it."""
    folder: Path | None = None
    """Where its weights are; None: they are drawn."""
    files: FilesByPurpose = field(default_factory=dict)
    """All files that its vectors follow from, by what they are for; none where its weights are drawn."""

    def prompt(self, purpose: str) -> str:
        """What stands before a text that is a `query` or a `passage`, by whatever name it has there."""
        return prompt_for(purpose, self.prompts, self.default_prompt)

    def with_unit_vectors(self) -> "EncoderSource":
        """The same with vectors of length 1."""
        network = self.network
        return replace(self, network=lambda: with_unit_vectors(network()))

    def with_projection(self, dim: int) -> "EncoderSource":
        """The same with a projection to `dim` behind it, which is drawn."""
        network = self.network
        return replace(self, network=lambda: with_projection(network(), dim), dim=dim)

    def load(self) -> SentenceEncoder:
        """The network with its first weights, on the CPU, in evaluation mode. What is drawn comes from torch's
        generator."""
        network = self.network()
        network.initialise()
        return network.eval()


def open_encoder(
    name: str | Path,
    *,
    world: World | None = None,
    dtype: str = "auto",
    dropout: float | None = 0.0,
    max_length: int | None = None,
    attention: str | None = None,
    append_eos: bool | None = None,
    section: str = "",
) -> EncoderSource:
    """An encoder by its folder or its name on the Hub. Collective, if a world is given.

    `dtype` is the type of its weights, `auto` as they are stored. `dropout` is the probability of its dropout, but for
    attention's own, which is then off; None leaves all as published. `max_length` is how many tokens of a text are
    read, by default as many as it was made for.

    A folder that names code of its own is refused, unless it is said what is meant: `attention` is `bidirectional` or
    `causal` for a decoder, and `append_eos` whether every text ends with the tokenizer's end token, also one that is
    cut. Names of settings in messages begin with `section`.
    """
    if dtype not in DTYPES:
        raise UserError(f"Set dtype to one of {', '.join(DTYPES)}; it is {dtype!r}.")
    folder = resolve_model(str(name), world)
    files = read_sentence_files(folder)
    if files.is_plain and (world is None or world.is_main):
        logger.warning("%s has no modules.json; its vectors are the mean of its tokens'", folder)
    plan = TransformerPlan.read(files.transformer, dtype, dropout, attention, section)
    if hasattr(plan.published, "auto_map"):
        del plan.published.auto_map  # what is written later must not name it either
    tokenizer = read_tokenizer(files.transformer, files.lower_case, append_eos, section)
    blank = _build_on_meta(plan, files)
    places = _find_all_weights(files, blank)
    return EncoderSource(
        network=partial(_build, plan, files, FolderWeights(places)),
        tokenizer=tokenizer,
        dim=blank.dim,
        max_length=_length(files, tokenizer, blank.transformer, max_length),
        config=plan.published,
        prompts=files.prompts,
        default_prompt=files.default_prompt,
        similarity=files.similarity,
        folder=folder,
        files=_files(folder, files),
    )


def _files(folder: Path, files: SentenceFiles) -> FilesByPurpose:
    own = files.transformer
    small = [own / CONFIG, own / TRANSFORMER_SETTINGS, folder / MODULES, *(path / CONFIG for path in files.head)]
    found = {
        "weights": [*weights_in(own), *(file for path in files.head for file in weights_in(path))],
        "tokenizer": tokenizer_in(own),
        "pooling": [Path(files.pooling_file)] if files.pooling_file else [],
        "configuration": small,
        "prompts": [folder / SETTINGS],
    }
    return by_name(folder, found)


def _build(plan: TransformerPlan, files: SentenceFiles, first_values: FolderWeights | None) -> SentenceEncoder:
    transformer = plan.build()
    encoder = SentenceEncoder(
        transformer, files.pooling(plan.width), [make() for make in files.head.values()], first_values=first_values
    )
    return encoder.to(plan.dtype)


def _build_on_meta(plan: TransformerPlan, files: SentenceFiles) -> SentenceEncoder:
    with torch.device("meta"):
        encoder = _build(plan, files, None)
    _check_widths(encoder, files)
    return encoder


def _check_widths(encoder: SentenceEncoder, files: SentenceFiles) -> None:
    """Refuse modules that do not fit each other."""
    with torch.device("meta"):
        vectors = torch.empty(1, encoder.pooling.dim, dtype=next(encoder.parameters()).dtype)
    for path, module in zip(files.head, encoder.head):
        try:
            vectors = module(vectors)
        except RuntimeError:
            raise UserError(
                f"Fetch or copy {path} again; it does not fit vectors of {vectors.shape[1]}, which is what comes "
                "before it."
            ) from None


def _find_all_weights(files: SentenceFiles, encoder: SentenceEncoder) -> dict[str, StoredTensor]:
    transformer = encoder.transformer
    prefixes = [f"{prefix}." for prefix in (getattr(transformer, "base_model_prefix", ""),) if prefix]
    found = {
        f"transformer.{name}": place for name, place in find_weights(files.transformer, transformer, prefixes).items()
    }
    for number, (path, module) in enumerate(zip(files.head, encoder.head)):
        if any(True for _ in module.parameters()):
            found |= {f"head.{number}.{name}": place for name, place in find_weights(path, module).items()}
    return found


def _length(files: SentenceFiles, tokenizer: TextTokenizer, transformer: nn.Module, wanted: int | None) -> int:
    """The wanted length, or the one that the folder names; never more than the transformer has positions for."""
    limit = position_limit(transformer)
    if wanted is None:
        known = files.max_length or tokenizer.limit or limit
        if known is None:
            raise UserError(f"Set max_length; no file in {files.transformer} says how many tokens it reads.")
        return min(known, limit or known)
    if wanted < 1 or (limit is not None and wanted > limit):
        raise UserError(f"Set max_length from 1 to {limit or 'any number'} for {files.transformer}; it is {wanted}.")
    return wanted
