"""Pairs of texts for a language model: their rows, and how likely the model finds them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad as pad_tensor

from samestep import Batch, Lora, World, completion_log_probs
from samestep.data.data_file import DataFile
from samestep.recipes.dpo.config import DpoConfig
from samestep.recipes.dpo.families import Pairs
from samestep.recipes.dpo.objective import SFT, PairLogProbs, PairScores
from samestep.recipes.dpo.record_files import Problems, Record, read_records
from samestep.recipes.dpo.split import split
from samestep.recipes.dpo.text_models import PairTokens, TextModel, open_text_model
from samestep.recipes.dpo.text_records import TextPair, pydoc_pairs, read_pair

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


class TextFamily:
    """Language models."""

    files_by_default = False
    first_weights = None

    def __init__(self, config: DpoConfig, world: World) -> None:
        chosen = config.model
        self._config = config
        self._model: TextModel = open_text_model(chosen.name, chosen.dir, chosen.text, chosen.lora_rank, world)
        self.network = self._model.network
        self.pad = dict.fromkeys(_PARTS, self._model.pad) | {f"is_{name}": False for name in _PARTS}
        self.lora = Lora(rank=chosen.lora_rank) if chosen.lora_rank else None

    def pairs(self) -> Pairs:
        """Records of files, or sentences of Python's help."""
        data, seed = self._config.data, self._config.seed
        if data.train is None:
            texts = list(pydoc_pairs())[: data.limit]
            tokens = [(number, self._model.encode(pair)) for number, pair in enumerate(texts)]
            kept = [(number, pair) for number, pair in tokens if not self._fault(pair)]
            origin = np.frombuffer(repr(texts).encode("utf-8"), dtype=np.uint8)
            return Pairs("pydoc_data.topics", *self._split(kept, texts, origin, data.validation_fraction, seed))
        texts, kept, train_origin, notes = self._read(data.train, first=0)
        if data.validation is None:
            parts = self._split(kept, texts, train_origin, data.validation_fraction, seed)
            return Pairs(data.train, *parts, left_out=notes)
        _, held_out, origin, more = self._read(data.validation, first=len(texts))
        rows = TextRows(kept, train_origin), TextRows(held_out, origin)
        return Pairs(data.train, *rows, left_out="; ".join(filter(None, (notes, more))))

    def _split(
        self,
        kept: Sequence[tuple[int, PairTokens]],
        texts: Sequence[TextPair],
        origin: DataFile | np.ndarray,
        fraction: float,
        seed: int,
    ) -> tuple[TextRows, TextRows]:
        by_prompt = self._config.data.split_by == "structure"
        parts = split([repr(texts[number].prompt) if by_prompt else number for number, _ in kept], fraction, seed)
        train, validation = (TextRows([kept[row] for row in rows], origin) for rows in parts)
        return train, validation

    def _read(self, path: str, first: int) -> tuple[list[TextPair], list[tuple[int, PairTokens]], DataFile, str]:
        """All pairs of a file, those that are used as tokens with their numbers, and what was left out."""
        records, problems = read_records(path)
        texts, kept = [], []
        for record in records[: self._config.data.limit]:
            pair = read_pair(record.values)
            if isinstance(pair, str):
                problems.add(record.number, pair)
                continue
            self._add(record, pair, first + len(texts), kept, problems)
            texts.append(pair)
        notes = problems.check(self._config.data.skip_invalid, len(kept))
        return texts, kept, DataFile(problems.file.resolve()), notes

    def _add(
        self, record: Record, pair: TextPair, number: int, kept: list[tuple[int, PairTokens]], problems: Problems
    ) -> None:
        tokens = self._model.encode(pair)
        fault = self._fault(tokens)
        if fault:
            problems.add(record.number, fault)
        else:
            kept.append((number, tokens))

    def _fault(self, pair: PairTokens) -> str:
        """Why a pair cannot be trained on; empty if it can."""
        longest = len(pair.prompt) + max(len(pair.chosen), len(pair.rejected))
        limits = [self._config.data.max_length, self._model.limit]
        limit = min(number for number in limits if number is not None)
        if longest > limit:
            return f"it has {longest} tokens, and at most {limit} are taken (max_length, and what the model takes)"
        if not pair.prompt:
            return "its prompt has no token"
        if not pair.chosen or not pair.rejected:
            return "a completion has no token"
        return "" if pair.chosen != pair.rejected else "'chosen' and 'rejected' are the same tokens"

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

    def file_content(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """The weights by their names."""
        return {"model_state_dict": dict(weights)}


def _both(batch: Batch, prefix: str) -> Tensor:
    """Both completions of all rows, the preferred ones first, in one width."""
    parts = [batch[f"{prefix}{name}"] for name in ("chosen", "rejected")]
    width = max(part.shape[1] for part in parts)
    return torch.cat([pad_tensor(part, (0, width - part.shape[1])) for part in parts])
