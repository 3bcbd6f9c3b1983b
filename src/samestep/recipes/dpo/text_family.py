"""Language models: the network, what turns pairs of texts into tokens, and how likely it finds them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad as pad_tensor

from samestep import (
    Batch,
    CausalConfig,
    CausalTransformer,
    Lora,
    UserError,
    World,
    completion_log_probs,
    open_causal_lm,
)
from samestep.core.library_errors import tokenizer_sentence
from samestep.core.records import atomic_file
from samestep.data.data_file import DataFile
from samestep.data.split import split_records
from samestep.data.tokenizer.vocabulary import BYTES, ByteTokenizer
from samestep.models.causal_folder import CausalFolder
from samestep.models.hub import resolve_model
from samestep.models.log_probs import check_padding_free
from samestep.models.model_files import FilesByPurpose, causal_files
from samestep.recipes.dpo.config import DpoConfig, ModelConfig
from samestep.recipes.dpo.families import Pairs
from samestep.recipes.dpo.objective import SFT, PairLogProbs, PairScores
from samestep.recipes.dpo.text_data import COLUMNS, PairTokens, Text, TextPair, TextRows, pydoc_pairs, read_pair
from samestep.train.learner.draws import Draws


class TextModel(Protocol):
    """A language model."""

    pad: int
    """The token that stands where there is none."""
    limit: int | None
    """How many tokens a text may have."""
    files: FilesByPurpose
    """The files of its tokenizer and its configuration."""

    @property
    def eos(self) -> Sequence[int]:
        """The tokens that end a text."""

    @property
    def forbidden(self) -> Sequence[int]:
        """Tokens that are never written."""

    def network(self) -> nn.Module:
        """A network with its first weights."""

    def encode(self, pair: TextPair) -> PairTokens:
        """The tokens of a pair, ends of texts included."""

    def prompt(self, text: Text) -> list[int]:
        """The tokens of a prompt, up to where the model goes on."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a completion, without what ends it."""


class BuiltInModel:
    """A small transformer whose tokens are bytes."""

    pad, eos = BYTES.eos, (BYTES.eos,)

    def __init__(self, shape: CausalConfig) -> None:
        if shape.vocab_size != BYTES.size:
            raise UserError(f"Leave model.text.vocab_size at {BYTES.size}: the built-in network reads bytes.")
        self._shape, self._tokenizer = shape, ByteTokenizer()
        self.files: FilesByPurpose = {}
        self.limit: int | None = shape.max_sequence_length
        self.forbidden = BYTES.forbidden(shape.embeddings)

    def network(self) -> nn.Module:
        return CausalTransformer(self._shape)

    def encode(self, pair: TextPair) -> PairTokens:
        """Bytes, after the token that begins and before the one that ends a text."""
        prompt = self.prompt(pair.prompt)
        chosen, rejected = ([*self._tokenizer.encode(str(text)), BYTES.eos] for text in (pair.chosen, pair.rejected))
        return PairTokens(prompt, chosen, rejected)

    def prompt(self, text: Text) -> list[int]:
        if not isinstance(text, str):
            raise UserError("Name a chat model with base_model_name: the built-in network knows no chats.")
        assert BYTES.bos is not None
        return [BYTES.bos, *self._tokenizer.encode(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens)


class FolderModel:
    """A causal model of transformers. Chats go through its template; a text is taken as it is, and ends with EOS.

    A completion begins where the tokens of prompt and completion together leave those of the prompt, which may be a
    little before the prompt's end: some tokenizers join letters over it.
    """

    def __init__(self, folder: CausalFolder) -> None:
        self._folder, self.pad = folder, folder.pad
        files = causal_files(folder.path)
        self.files: FilesByPurpose = {name: files[name] for name in ("tokenizer", "configuration")}
        limit = getattr(folder.config.get_text_config(decoder=True), "max_position_embeddings", None)
        self.limit = limit if isinstance(limit, int) else None
        own = folder.tokenizer.eos_token_id
        self._end = folder.eos[0] if own is None else int(own)
        self.eos = tuple(dict.fromkeys((self._end, *folder.eos)))
        self.forbidden = folder.unused

    def network(self) -> nn.Module:
        return without_dropout(self._folder.network())

    def encode(self, pair: TextPair) -> PairTokens:
        prompt = self.prompt(pair.prompt)
        chosen, rejected = (self._whole(pair.prompt, completion) for completion in (pair.chosen, pair.rejected))
        shared = min(_shared(prompt, whole) for whole in (chosen, rejected))
        return PairTokens(prompt[:shared], chosen[shared:], rejected[shared:])

    def prompt(self, text: Text) -> list[int]:
        return self._ids(text) if isinstance(text, str) else self._folder.encode_chat(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._folder.decode(tokens)

    def _whole(self, prompt: Text, completion: Text) -> list[int]:
        if isinstance(prompt, str) or isinstance(completion, str):
            ids = self._ids(f"{prompt}{completion}")
            return ids if ids[-1:] == [self._end] else [*ids, self._end]
        return self._folder.encode_chat([*prompt, *completion], answer=False)

    def _ids(self, text: str) -> list[int]:
        with tokenizer_sentence(self._folder.path):
            return list(self._folder.tokenizer(text, verbose=False)["input_ids"])


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts begin with in common."""
    return next((place for place, (a, b) in enumerate(zip(first, second)) if a != b), min(len(first), len(second)))


def without_dropout(network: nn.Module) -> nn.Module:
    """The network with all its dropout set to 0, also what attention is given as a number, and that of whole layers: a
    policy that drops and a reference that does not are never the same network."""
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    return network


def open_text_model(config: ModelConfig, world: World) -> TextModel:
    """The model that a configuration names. Collective, since it may be downloaded."""
    name = config.name
    if config.dir is not None:
        name = str(Path(config.dir) / name) if name else config.dir
    if name is None:
        return BuiltInModel(config.text)
    # Weights that are trained are float32, whatever they are stored in; the base of adapters stays as it is.
    dtype = "auto" if config.lora_rank else "float32"
    return FolderModel(open_causal_lm(resolve_model(name, world), dtype=dtype))


@dataclass(frozen=True)
class _ReadTexts:
    """The pairs of a file that are used, also as tokens."""

    pairs: Sequence[tuple[TextPair, PairTokens]]
    origins: Sequence[DataFile | np.ndarray]

    def rows(self, first: int) -> TextRows:
        """All of them, numbered from `first`."""
        return TextRows([(first + place, tokens) for place, (_, tokens) in enumerate(self.pairs)], self.origins)


class TextFamily:
    """Language models."""

    files_by_default = False
    first_weights = None
    pad_multiple = 1  # a model may have no positions behind its longest text

    def __init__(self, config: DpoConfig, world: World) -> None:
        self._config = config
        self._model: TextModel = open_text_model(config.model, world)
        self.shape, self.files = config.model.text, self._model.files
        self.pad: Mapping[str, float] = dict.fromkeys(COLUMNS, self._model.pad) | {
            f"is_{name}": False for name in COLUMNS
        }
        self.lora = Lora(rank=config.model.lora_rank) if config.model.lora_rank else None

    def network(self) -> nn.Module:
        network = self._model.network()
        if self._config.padding_free:
            check_padding_free(network)
        return network

    def pairs(self) -> Pairs:
        """Records of files, or sentences of Python's help."""
        data = self._config.data
        read = self._read(data.train) if data.train is not None else self._read_pydoc()
        if data.validation is None:
            return Pairs(*self._split(read))
        held_out = self._read(data.validation)
        return Pairs(read.rows(0), held_out.rows(len(read.pairs)))

    def _split(self, read: _ReadTexts) -> tuple[TextRows, TextRows]:
        """Equal records stay together, and by prompt so do all records with the same prompt."""
        data = self._config.data
        groups = [repr(pair.prompt) if data.split_by == "structure" else repr(pair) for pair, _ in read.pairs]
        numbered = [(number, tokens) for number, (_, tokens) in enumerate(read.pairs)]
        parts = split_records(numbered, groups, validation=data.validation_fraction, seed=self._config.seed)
        return TextRows(parts.train, read.origins), TextRows(parts.validation, read.origins)

    def _read_pydoc(self) -> _ReadTexts:
        encoded = [(pair, self._model.encode(pair)) for pair in islice(pydoc_pairs(), self._config.data.limit)]
        fitting = [(pair, tokens) for pair, tokens in encoded if not self._fault(tokens)]
        content = repr([pair for pair, _ in fitting]).encode("utf-8")
        return _ReadTexts(fitting, [np.frombuffer(content, dtype=np.uint8)])

    def _read(self, path: str) -> _ReadTexts:
        data = self._config.data
        records = data.records(path, data.limit)
        records.expect(COLUMNS, lists=COLUMNS)
        pairs = []
        for row in records.rows:
            with records.refusing(row):
                pair = read_pair(row.values)
                tokens = self._model.encode(pair)  # a template may refuse a chat
                if about := self._fault(tokens):
                    records.refuse(row, about[1], about[0])
                else:
                    pairs.append((pair, tokens))
        records.check(data.skip_invalid)
        return _ReadTexts(pairs, records.origins())

    def _fault(self, pair: PairTokens) -> tuple[str, str] | None:
        """Why a pair cannot be trained on: in a word, and in a sentence."""
        longest = len(pair.prompt) + max(len(pair.chosen), len(pair.rejected))
        limits = [self._config.data.max_length, self._model.limit]
        limit = min(number for number in limits if number is not None)
        if longest > limit:
            return "max_length", f"it has {longest} tokens, more than {limit} (max_length, or all the model takes)"
        if not pair.prompt or not pair.chosen or not pair.rejected:
            return "tokens", "its prompt or one of its completions has no token; give it some text"
        return ("tokens", "'chosen' and 'rejected' are the same tokens") if pair.chosen == pair.rejected else None

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

    def save(self, path: Path, weights: Mapping[str, Tensor]) -> None:
        with atomic_file(path) as file:
            torch.save({"model_state_dict": dict(weights)}, file)


def _both(batch: Batch, prefix: str) -> Tensor:
    """Both completions of all rows, the preferred ones first, in one width."""
    parts = [batch[f"{prefix}{name}"] for name in ("chosen", "rejected")]
    width = max(part.shape[1] for part in parts)
    return torch.cat([pad_tensor(part, (0, width - part.shape[1])) for part in parts])
