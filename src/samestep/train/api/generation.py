"""Generating text inside training: prompts in, sampled tokens out, the same at any world size.

    generator = LocalGenerator.of(bench, "rollout", GenerationConfig(max_new_tokens=64), eos=[tokenizer.eos_token_id])
    with policy.inference() as network:
        written = generator(network, prompts, batch["ids"], step=tick.step)

A token depends on the seed, the purpose, the step, the sample's ids and its position in the completion, through keyed
noise; not on the rows it shares a batch with, on padding or on ranks. All ranks call a generator alike, also a rank
without prompts: they go on until all are done, since a sharded network must be called equally often on all of them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from samestep.core.config import free
from samestep.core.config.bounds import Bounds, Count, NotNegative
from samestep.core.config.checked import CheckedConfig
from samestep.core.errors import UserError
from samestep.models.decoding import left_pad, open_decoder, position_limit
from samestep.models.log_probs import token_log_probs
from samestep.parallel.cuda_graphs import record as record_cuda_graph
from samestep.train.api.bench import Bench
from samestep.train.learner.draws import Draws
from samestep.world.world import World

AT_ONCE = 2**24
"""Scores in float64 that exist at once: 128 MiB, and a few times that while noise is made."""
RECORDS_FROM = 16
"""Completions of more tokens are sampled by a CUDA graph on a GPU: recording one takes as long as a few tokens."""


@dataclass(frozen=True)
class GenerationConfig(CheckedConfig):
    """How completions are sampled."""

    max_new_tokens: Count = 128
    """Tokens of a completion at most, the end of the text included."""
    temperature: NotNegative = 1.0
    """0 takes the likeliest token, 1 samples from the network's own probabilities."""
    top_k: Count | None = None
    """Sample only from this many of the likeliest tokens; null is all."""
    top_p: Annotated[float, Bounds(above=0, most=1)] = 1.0
    """Sample only from the likeliest tokens that together have this probability; 1 is all."""
    rows_at_once: Count = free(64)
    """Prompts that are completed together on a device: more is faster there, and takes memory for their cache."""


@dataclass(frozen=True)
class Completions:
    """What was sampled, one row for each prompt, on the device."""

    tokens: Tensor
    """[rows, max_new_tokens]: exactly the sampled tokens, the end of the text included, then padding."""
    lengths: Tensor
    """[rows]: how many were sampled."""
    finished: Tensor
    """[rows]: whether the completion ended by itself; False: it was cut at the limit."""
    log_probs: Tensor
    """[rows, max_new_tokens]: of each token, at the sampling temperature (0 counts as 1), over all tokens whatever
    top_k and top_p leave; 0 in the padding."""

    @property
    def mask(self) -> Tensor:
        """[rows, max_new_tokens]: true where a token was sampled."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]

    def to_lists(self) -> list[list[int]]:
        """The sampled tokens of each row."""
        return [row[:length] for row, length in zip(self.tokens.tolist(), self.lengths.tolist(), strict=True)]


class Generator(Protocol):
    """Anything that completes prompts: `LocalGenerator`, or an engine with weights of its own."""

    def __call__(self, network: nn.Module, prompts: Sequence[Sequence[int]], ids: Tensor, *, step: int) -> Completions:
        """Complete this rank's prompts with the weights that `network` has now.

        `ids` [prompts, 2] names the sample of each prompt, as `batch["ids"]` does. Called by all ranks alike.
        """


@dataclass(frozen=True)
class LocalGenerator:
    """Samples with the network itself and a cache: a `CausalTransformer`, or a causal model of transformers."""

    config: GenerationConfig
    """How long completions are, and how they are drawn."""
    draws: Draws
    """Its noise: `bench.draws("name")`."""
    world: World
    """The ranks, which all generate until all are done: `bench.world`."""
    eos: Sequence[int] = ()
    """The tokens that end a text."""
    pad: int = 0
    """What stands behind the end of a completion, and in front of shorter prompts."""
    forbidden: Sequence[int] = ()
    """Tokens that are never sampled, such as rows of an embedding that was rounded up."""
    check_stop: Callable[[], None] | None = None
    """Called now and then, by all ranks alike: leaves a step when the run is asked to stop."""
    keep_gathered: bool = False
    """Gather a sharded network once, not for every token; each device then holds it in full while it generates."""
    check_every: int = 8
    """Tokens after which ranks ask each other whether all are done; between, nobody waits for the device."""

    @classmethod
    def of(
        cls,
        bench: Bench,
        purpose: str,
        config: GenerationConfig,
        *,
        eos: Sequence[int] = (),
        pad: int = 0,
        forbidden: Sequence[int] = (),
        keep_gathered: bool = False,
    ) -> "LocalGenerator":
        """A generator for a stage. `purpose` keeps its noise apart from that of other generators."""
        draws, stop = bench.draws(purpose), bench.check_stop
        return cls(config, draws, bench.world, eos, pad, forbidden, stop, keep_gathered)

    @torch.no_grad()
    def __call__(self, network: nn.Module, prompts: Sequence[Sequence[int]], ids: Tensor, *, step: int) -> Completions:
        """Complete this rank's prompts; `network` is what `learner.inference()` or `frozen.inference()` gives."""
        self._check(network, prompts, ids)
        most = max(int(count) for (count,) in self.world.async_gather.submit([float(len(prompts))]).by_rank())
        batches = -(-most // self.config.rows_at_once)
        units = [part for part in network.modules() if isinstance(part, FSDPModule)]
        by_length = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))  # so there is less padding
        made: list[Completions] = []
        with _kept_gathered(units if self.keep_gathered else []):
            for batch in range(batches):
                chosen = by_length[len(prompts) * batch // batches : len(prompts) * (batch + 1) // batches]
                rows = None
                if chosen or units:
                    rows = _RowsInProgress(self, network, [prompts[number] for number in chosen], ids[chosen], step)
                self._complete(rows, is_sharded=bool(units))
                made += [rows.result()] if rows and chosen else []
        return _joined(made, by_length) if made else _no_rows(self)

    def _complete(self, rows: "_RowsInProgress | None", is_sharded: bool) -> None:
        """Sample until the rows of all ranks have ended."""
        limit, is_done = self.config.max_new_tokens, rows is None
        for start in range(0, limit, self.check_every):
            stop = min(start + self.check_every, limit)
            if rows is not None and (is_sharded or not is_done):
                rows.advance(stop, record=self.world.device.type == "cuda" and not is_sharded)
                is_done = rows.is_done()
            self.world.activity.made_progress()
            if self.check_stop is not None:
                self.check_stop()
            if stop < limit and self.world.async_gather.submit([float(not is_done)]).sums() == [0.0]:
                return

    def _check(self, network: nn.Module, prompts: Sequence[Sequence[int]], ids: Tensor) -> None:
        if ids.shape != (len(prompts), 2):
            raise UserError(
                f"a generator needs the ids of each prompt, [{len(prompts)}, 2], as batch['ids'] has them; it was "
                f"given {list(ids.shape)}"
            )
        if not all(len(prompt) for prompt in prompts):
            raise UserError("a prompt is empty; begin it with a token, such as the one that begins a text")
        limit, longest = position_limit(network), max(map(len, prompts), default=0)
        if limit is not None and longest + self.config.max_new_tokens > limit:
            raise UserError(
                f"a prompt has {longest} tokens and max_new_tokens is {self.config.max_new_tokens}, but the network "
                f"takes {limit} in all; shorten one of them"
            )


class _RowsInProgress:
    """Prompts that are being completed together. Nothing here waits for the device but `is_done`."""

    def __init__(
        self, generator: LocalGenerator, network: nn.Module, prompts: list[Sequence[int]], ids: Tensor, step: int
    ) -> None:
        """Without prompts, a row that has ended already stands in, so that the network can be called."""
        self._generator, self._step = generator, step
        device, limit = generator.world.device, generator.config.max_new_tokens
        self._ids = (ids if prompts else torch.zeros(1, 2, dtype=torch.int64)).to(device)
        self._prompts, mask = left_pad(prompts or [[generator.pad]], generator.pad, device)
        self._decoder = open_decoder(network, mask, width=self._prompts.shape[1], new_tokens=limit)
        rows = len(self._prompts)
        self._eos = torch.tensor(list(generator.eos), dtype=torch.int64, device=device)
        self._forbidden = torch.tensor(list(generator.forbidden), dtype=torch.int64, device=device)
        # All of it changes in place, so that a step can be recorded.
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._next = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self._ended = torch.full((rows,), not prompts, device=device)
        self._lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self._finished = torch.zeros(rows, dtype=torch.bool, device=device)
        self._tokens = torch.full((rows, limit), generator.pad, dtype=torch.int64, device=device)
        self._log_probs = torch.zeros(rows, limit, device=device)
        self._margins = torch.zeros(rows, limit, dtype=torch.float64, device=device)
        self._sampled, self._records_next = 0, False
        self._replay: Callable[[], None] | None = None

    def advance(self, stop: int, record: bool) -> None:
        """Sample tokens up to a position. With `record`, further steps run as a CUDA graph once it is recorded."""
        for position in range(self._sampled, stop):
            if position == 0:
                self._sample(self._prompts)
                is_long = self._generator.config.max_new_tokens > RECORDS_FROM
                self._records_next = record and is_long and self._decoder.fix()
            elif self._replay is not None:
                self._replay()
            else:
                self._sample_next()
                if self._records_next:
                    self._records_next = False
                    self._replay = record_cuda_graph(self._sample_next, self._generator.world.device, "generation")
        self._sampled = max(stop, self._sampled)

    def _sample_next(self) -> None:
        self._sample(self._next)

    def _sample(self, tokens: Tensor) -> None:
        """Read tokens, and sample what comes after them."""
        chosen, log_probs, margins = self._choose(self._decoder(tokens))
        chosen = torch.where(self._ended, self._generator.pad, chosen)
        log_probs = torch.where(self._ended, 0.0, log_probs)
        self._log_probs = self._log_probs.to(log_probs.dtype)  # known from the first step on
        for found, values in ((chosen, self._tokens), (log_probs, self._log_probs), (margins, self._margins)):
            values.index_copy_(1, self._position, found[:, None])
        self._lengths += ~self._ended
        self._finished |= ~self._ended & (chosen[:, None] == self._eos).any(1)
        self._ended |= self._finished
        self._next.copy_(chosen[:, None])
        self._position += 1

    def is_done(self) -> bool:
        """Whether all rows have ended; waits for the device."""
        return bool(self._ended.all())

    def result(self) -> Completions:
        """What was sampled; recorded, if the run is."""
        if self._generator.draws.recorder:
            for position in range(self._sampled):
                live = self._lengths > position
                tokens, margins = self._tokens[live, position], self._margins[live, position]
                self._generator.draws.record(self._step, self._ids[live], position, tokens, margins)
        return Completions(self._tokens, self._lengths, self._finished, self._log_probs)

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A token a row, its log-probability, and how far the runner-up was; a few rows at a time."""
        config, draws = self._generator.config, self._generator.draws
        size = max(1, AT_ONCE // logits.shape[1])
        parts = []
        for part, ids in zip(logits.split(size), self._ids.split(size), strict=True):
            allowed = allowed_scores(part, config, self._forbidden)
            tokens, margins = draws.choose(
                allowed, step=self._step, ids=ids, position=self._position, temperature=config.temperature
            )
            parts.append((tokens, token_log_probs(part, tokens, config.temperature), margins))
        tokens, log_probs, margins = (torch.cat(values) for values in zip(*parts, strict=True))
        return tokens, log_probs, margins


def allowed_scores(logits: Tensor, config: GenerationConfig, forbidden: Tensor) -> Tensor:
    """Logits [rows, vocabulary] in float64, -inf for tokens that are forbidden or outside of top_k and top_p."""
    scores = logits.double().index_fill(1, forbidden, -torch.inf)
    if config.top_k is not None and config.top_k < scores.shape[1]:
        least = scores.topk(config.top_k).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if config.top_p < 1 and config.temperature > 0:
        ordered = scores.sort(descending=True).values
        shares = (ordered / config.temperature).softmax(1)
        is_kept = shares.cumsum(1) - shares < config.top_p  # at least the first
        least = ordered.masked_fill(~is_kept, torch.inf).amin(1, keepdim=True)
        scores = scores.masked_fill(scores < least, -torch.inf)
    return scores


@contextmanager
def _kept_gathered(units: Sequence[FSDPModule]) -> Iterator[None]:
    """Inside, a part of a sharded network that was gathered stays so."""
    for unit in units:
        unit.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for number, unit in enumerate(units):
            unit.set_reshard_after_forward(number > 0, recurse=False)  # the outermost one stays gathered by default
            unit.reshard()


def _no_rows(generator: LocalGenerator) -> Completions:
    none = torch.zeros(0, generator.config.max_new_tokens, device=generator.world.device)
    return Completions(none.long(), none[:, 0].long(), none[:, 0].bool(), none)


def _joined(parts: Sequence[Completions], order: Sequence[int]) -> Completions:
    """Their rows together; `order` is where each of them belongs."""
    columns = zip(*((one.tokens, one.lengths, one.finished, one.log_probs) for one in parts), strict=True)
    places = torch.tensor(order, dtype=torch.int64, device=parts[0].tokens.device).argsort()
    return Completions(*(torch.cat(column)[places] for column in columns))
