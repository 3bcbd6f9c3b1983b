"""Pairs of texts for a language model: their rows, and how likely the model finds them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad as pad_tensor

from samestep import Batch, Lora, UserError, World, completion_log_probs
from samestep.core.paths import expand_home
from samestep.core.records import atomic_file
from samestep.data.data_file import DataFile
from samestep.data.json_records import json_records
from samestep.models.log_probs import check_padding_free
from samestep.recipes.dpo.config import DpoConfig
from samestep.recipes.dpo.families import Pairs
from samestep.recipes.dpo.objective import SFT, PairLogProbs, PairScores
from samestep.recipes.dpo.pair_split import split_groups
from samestep.recipes.dpo.record_files import Problem, leave_out, selection
from samestep.recipes.dpo.text_models import PairTokens, TextModel, open_text_model
from samestep.recipes.dpo.text_records import Fault, TextPair, pydoc_pairs, read_pair
from samestep.train.learner.draws import Draws

_PARTS = ("prompt", "chosen", "rejected")


class TextRows:
    """Pairs as tokens."""

    def __init__(self, pairs: Sequence[tuple[int, PairTokens]], origin: DataFile | np.ndarray) -> None:
        """`pairs` have their numbers in all of the run's data."""
        self._pairs, self._origin = pairs, origin
        self.lengths = [len(pair.prompt) + max(len(pair.chosen), len(pair.rejected)) for _, pair in pairs]

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        record, pair = self._pairs[index]
        row = {"record": torch.tensor(record)}
        for name, tokens in zip(_PARTS, pair):
            row[name] = torch.tensor(tokens)
            row[f"is_{name}"] = torch.ones(len(tokens), dtype=torch.bool)
        return row

    def origins(self) -> list[DataFile | np.ndarray]:
        """Where the texts come from."""
        return [self._origin]


@dataclass(frozen=True)
class _ReadTexts:
    """What a file holds."""

    texts: Sequence[TextPair]
    """Those that are used."""
    kept: Sequence[tuple[int, PairTokens]]
    """The same as tokens, with their numbers."""
    origin: DataFile | np.ndarray
    left_out: str = ""

    def rows(self) -> TextRows:
        """All that are used."""
        return TextRows(self.kept, self.origin)


class TextFamily:
    """Language models."""

    files_by_default = False
    first_weights = None
    pad_multiple = 1  # a model may have no positions behind its longest text

    def __init__(self, config: DpoConfig, world: World) -> None:
        chosen = config.model
        self._config = config
        self._model: TextModel = open_text_model(chosen, world)
        self.pad: Mapping[str, float] = dict.fromkeys(_PARTS, self._model.pad) | {
            f"is_{name}": False for name in _PARTS
        }
        self.lora = Lora(rank=chosen.lora_rank) if chosen.lora_rank else None

    def network(self) -> nn.Module:
        """The network with its first weights."""
        network = self._model.network()
        if self._config.padding_free:
            check_padding_free(network)
        return network

    def pairs(self) -> Pairs:
        """Records of files, or sentences of Python's help."""
        data = self._config.data
        if data.train is None:
            encoded = [(pair, self._model.encode(pair)) for pair in islice(pydoc_pairs(), data.limit)]
            fitting = [(pair, tokens) for pair, tokens in encoded if not self._fault(tokens)]
            texts = [pair for pair, _ in fitting]
            kept = [(number, tokens) for number, (_, tokens) in enumerate(fitting)]
            read = _ReadTexts(texts, kept, np.frombuffer(repr(texts).encode("utf-8"), dtype=np.uint8))
            return Pairs("pydoc_data.topics", *self._split(read))
        read = self._read(data.train, first=0)
        if data.validation is None:
            return Pairs(data.train, *self._split(read), left_out=read.left_out)
        held_out = self._read(data.validation, first=len(read.texts))
        left_out = "; ".join(filter(None, (read.left_out, held_out.left_out)))
        return Pairs(data.train, read.rows(), held_out.rows(), left_out)

    def _split(self, read: "_ReadTexts") -> tuple[TextRows, TextRows]:
        """Equal records stay together, and by prompt so do all records with the same prompt."""
        data = self._config.data
        groups = [repr(pair.prompt) if data.split_by == "structure" else repr(pair) for pair in read.texts]
        train, held_out = split_groups(read.kept, groups, data.validation_fraction, self._config.seed)
        return TextRows(train, read.origin), TextRows(held_out, read.origin)

    def _read(self, path: str, first: int) -> "_ReadTexts":
        """The pairs of a file, numbered from `first`."""
        file, data = expand_home(path), self._config.data
        texts: list[TextPair] = []
        kept: list[tuple[int, PairTokens]] = []
        problems: list[Problem] = []
        records = list(json_records(file))[: data.limit]
        for number, (where, value) in enumerate(records, start=1):
            found = self._checked(value)
            if isinstance(found, Fault):
                problems.append(Problem(number, where, *found))
            else:
                kept.append((first + len(texts), found[1]))
                texts.append(found[0])
        left_out = leave_out(file, problems, len(records), len(kept), data.skip_invalid)
        note = selection(file, len(kept), len(records), left_out) if left_out else ""
        return _ReadTexts(texts, kept, DataFile(file.resolve()), note)

    def _checked(self, value: Any) -> tuple[TextPair, PairTokens] | Fault:
        """The pair of a record, also as tokens, or what is wrong with it."""
        pair = read_pair(value)
        if isinstance(pair, Fault):
            return pair
        try:
            tokens = self._model.encode(pair)
        except UserError as problem:  # such as a chat that the template refuses
            return Fault("chat", str(problem).rstrip("."))
        return self._fault(tokens) or (pair, tokens)

    def _fault(self, pair: PairTokens) -> Fault | None:
        """Why a pair cannot be trained on."""
        longest = len(pair.prompt) + max(len(pair.chosen), len(pair.rejected))
        limits = [self._config.data.max_length, self._model.limit]
        limit = min(number for number in limits if number is not None)
        if longest > limit:
            return Fault(
                "max_length", f"it has {longest} tokens, more than {limit} (max_length, or all the model takes)"
            )
        if not pair.prompt or not pair.chosen or not pair.rejected:
            return Fault("tokens", "its prompt or one of its completions has no token; give it some text")
        return Fault("tokens", "'chosen' and 'rejected' are the same tokens") if pair.chosen == pair.rejected else None

    def scores(self, network: nn.Module, batch: Batch) -> PairScores:
        """Both completions of each row after its prompt, in one call of the network."""
        found = completion_log_probs(
            network,
            *(torch.cat([batch[name]] * 2) for name in ("prompt", "is_prompt")),
            *(_both(batch, prefix) for prefix in ("", "is_")),
            temperature=self._config.temperature,
            padding_free=self._config.padding_free,
        )
        chosen, rejected = found.log_probs.sum(1, dtype=torch.float64).chunk(2)
        return PairScores(PairLogProbs(chosen, rejected), batch["is_chosen"].sum(1), batch["is_rejected"].sum(1))

    def count(self, batch: Batch) -> Mapping[str, Tensor]:
        """Tokens of the preferred completions."""
        return {SFT: batch["is_chosen"].sum(1)}

    def with_samples(self, network: nn.Module, batch: Batch, draws: Draws, step: int) -> dict[str, Tensor]:
        """Not for texts; settings that ask for it are refused."""
        raise NotImplementedError

    def save(self, path: Path, weights: Mapping[str, Tensor]) -> None:
        """The weights by their names."""
        with atomic_file(path) as file:
            torch.save({"model_state_dict": dict(weights)}, file)


def _both(batch: Batch, prefix: str) -> Tensor:
    """Both completions of all rows, the preferred ones first, in one width."""
    parts = [batch[f"{prefix}{name}"] for name in ("chosen", "rejected")]
    width = max(part.shape[1] for part in parts)
    return torch.cat([pad_tensor(part, (0, width - part.shape[1])) for part in parts])
