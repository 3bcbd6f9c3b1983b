"""Language models: the network, what turns pairs of texts into tokens, and how likely it finds them."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad as pad_tensor

from samestep import Batch, LanguageModel, World, completion_log_probs, open_language_model, samples
from samestep.core.json_files import atomic_file
from samestep.data.records.too_long import LengthLimit
from samestep.kit.language_model import without_dropout
from samestep.models.log_probs import check_padding_free
from samestep.models.model_files import FilesByPurpose
from samestep.recipes.dpo.config import DpoConfig, ModelConfig
from samestep.recipes.dpo.families import Pairs, ReadPairs
from samestep.recipes.dpo.objective import SFT, PairLogProbs, PairScores
from samestep.recipes.dpo.text_data import (
    COLUMNS,
    PROMPTS,
    PairTokens,
    ReadText,
    TextPair,
    divide_texts,
    pydoc_pairs,
    read_pair,
)
from samestep.train.learner.draws import Draws


def open_text_model(config: ModelConfig, world: World) -> LanguageModel:
    """The model that a configuration names. Collective, since it may be downloaded."""
    dtype = config.weights_dtype
    return open_language_model(config.path, world, shape=config.text, setting="model.text", dtype=dtype)


def encode_pair(model: LanguageModel, pair: TextPair) -> PairTokens:
    """The tokens of a pair, ends of texts included. A completion begins where the tokens of prompt and completion
    together leave those of the prompt, which may be a little before the prompt's end: some tokenizers join letters over
    it."""
    prompt = model.begin(pair.prompt)
    chosen, rejected = (model.whole(pair.prompt, completion) for completion in (pair.chosen, pair.rejected))
    shared = sum(1 for _ in takewhile(lambda place: len(set(place)) == 1, zip(prompt, chosen, rejected)))
    return PairTokens(prompt[:shared], chosen[shared:], rejected[shared:])


class TextFamily:
    """Language models."""

    files_by_default = False
    first_weights = None
    pad_multiple = 1  # a model may have no positions behind its longest text

    def __init__(self, config: DpoConfig, world: World) -> None:
        self._config = config
        self._model = open_text_model(config.model, world)
        self.shape = config.model.text
        self.files: FilesByPurpose = self._model.files
        self.pad: Mapping[str, float] = dict.fromkeys(COLUMNS, self._model.pad) | {
            f"is_{name}": False for name in COLUMNS
        }
        self.lora = config.model.lora
        limits = [config.data.max_length, self._model.limit]
        self._most = min(limit for limit in limits if limit is not None)
        """Tokens of a pair at most."""

    def network(self) -> nn.Module:
        # A policy that drops and a reference that does not are never the same network.
        network = without_dropout(self._model.network())
        if self._config.padding_free:
            check_padding_free(network)
        return network

    def pairs(self) -> Pairs:
        """Records of files, or sentences of Python's help."""
        data = self._config.data
        read = self._read(data.train) if data.train is not None else self._read_pydoc()
        other = self._read(data.validation, len(read.pairs)) if data.validation is not None else None
        return divide_texts(self._config, read, other)

    def _read_pydoc(self) -> ReadPairs[ReadText]:
        encoded = [(pair, encode_pair(self._model, pair)) for pair in islice(pydoc_pairs(), self._config.data.limit)]
        fitting = [(pair, tokens) for pair, tokens in encoded if not _fault(tokens) and tokens.length <= self._most]
        content = repr([pair for pair, _ in fitting]).encode("utf-8")
        texts = [ReadText(number, *read) for number, read in enumerate(fitting)]
        return ReadPairs(texts, [np.frombuffer(content, dtype=np.uint8)])

    def _read(self, path: str | Sequence[str], first: int = 0) -> ReadPairs[ReadText]:
        """The pairs of a file, numbered from `first`."""
        data = self._config.data
        records = data.records(path, data.limit)
        records.expect([PROMPTS, *COLUMNS[1:]], lists=[*PROMPTS, *COLUMNS[1:]])
        sources: dict[int, int] = {}
        texts, limit = list[ReadText](), LengthLimit(self._most, data.too_long, what="pairs")
        for row in records.rows:
            with records.refusing(row):
                pair = read_pair(row.values)
                tokens = encode_pair(self._model, pair)  # a template may refuse a chat
                if not limit.keeps(tokens.length, partial(records.refuse, row, about="max_length")):
                    continue
                tokens = tokens.cut(self._most)
                if fault := _fault(tokens):
                    records.refuse(row, fault, "tokens")
                else:
                    sources[first + len(texts)] = row.source
                    texts.append(ReadText(first + len(texts), pair, tokens))
        records.check(data.skip_invalid)
        limit.say(records.path)
        return ReadPairs(texts, records.origins(), records, sources)

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
        return {SFT: batch["is_chosen"].sum(1)}

    def with_samples(self, network: nn.Module, batch: Batch, draws: Draws, step: int) -> dict[str, Tensor]:
        """Not for texts; settings that ask for it are refused."""
        raise NotImplementedError

    def shown(self, network: nn.Module, batch: Batch, terms: Mapping[str, Tensor]) -> list[samples.Pair]:
        """Both answers, with the reward that the policy gives them."""
        found = []
        for row in range(len(batch["live"])):
            texts = {name: self._model.decode(batch[name][row][batch[f"is_{name}"][row]].tolist()) for name in COLUMNS}
            rewards = {name: float(terms[f"{name}_reward"][row]) for name in COLUMNS[1:]}
            found.append(samples.Pair({name: texts[name] for name in rewards}, texts["prompt"], scores=rewards))
        return found

    def save(self, path: Path, weights: Mapping[str, Tensor]) -> None:
        with atomic_file(path) as file:
            torch.save({"model_state_dict": dict(weights)}, file)


def _fault(pair: PairTokens) -> str:
    """Why a pair cannot be trained on."""
    if not pair.prompt or not pair.chosen or not pair.rejected:
        return "its prompt or one of its completions has no token; give it some text, or raise max_length"
    return "'chosen' and 'rejected' are the same tokens" if pair.chosen == pair.rejected else ""


def _both(batch: Batch, prefix: str) -> Tensor:
    """Both completions of all rows, the preferred ones first, in one width."""
    parts = [batch[f"{prefix}{name}"] for name in ("chosen", "rejected")]
    width = max(part.shape[1] for part in parts)
    return torch.cat([pad_tensor(part, (0, width - part.shape[1])) for part in parts])
