"""`samestep evaluate --tasks`: a trained model on the tasks of lm-evaluation-harness, through its Python API; without
tasks, a run on what it held back (held_out.py).

The harness makes three kinds of request: how likely an answer is after a prompt, how likely a whole text is, and what
the model generates. Every rank gets all requests, computes its share, and gathers the rest: the results are those of
one process.

The log-likelihood of an answer after a prompt is a Monte Carlo estimate. A draw masks exactly l of the answer's L
tokens, chosen at random, and scores

    L / l * sum over the masked tokens of log q(token | prompt and the unmasked part of the answer)

whose mean over l = 1..L and over all choices is the answer's mean log-probability when it is generated in a random
order: a lower bound of log p(answer | prompt). The l of a pair's draws are spread evenly over 1..L from a random
offset, so that only the noise within an l remains. Probabilities are normalised over all logits, as in training: an
untrained network with uniform logits gives exactly -L log V, where V is the number of its logits.
"""

import importlib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samestep import Trained, UserError, World, noise
from samestep.core.config.bounds import Count, CountOrZero
from samestep.core.config.checked import CheckedConfig
from samestep.core.console import PlainConsole
from samestep.core.json_files import Json
from samestep.core.pages.tables import Column, Table
from samestep.data.prepared.chats import ChatMessage, chat_prompt
from samestep.data.tokenizer.vocabulary import Tokenizer, Vocabulary
from samestep.recipes.mdlm.config import MdlmConfig
from samestep.recipes.mdlm.generating import Dtype, open_network
from samestep.recipes.mdlm.held_out import measure_held_out
from samestep.recipes.mdlm.pretrained import model_tokenizer
from samestep.recipes.mdlm.sampling import (
    SamplingConfig,
    batches_by_shape,
    draft,
    log_probability,
    logits_at,
    sample,
    say_tokens_a_pass,
    until_end,
)
from samestep.train.trained.held_out import show_metrics

COUNT = noise.purpose("mdlm.likelihood.count")
CHOICE = noise.purpose("mdlm.likelihood.choice")
RUNS_CODE = ("marked as unsafe", "HF_ALLOW_CODE_EVAL")
"""What the harness, or the metric that runs programs, says when it refuses to."""
PromptAnswer = tuple[list[int], list[int]]
"""A prompt and an answer, in tokens."""
HarnessRequest = Any
"""The harness's own request class; its arguments are in `args`."""


@dataclass(frozen=True)
class EvaluationOptions(CheckedConfig):
    """Without tasks: a run on the part of its data that it held back. Else which tasks, and how: text is generated with
    the settings of `sampling` (--sampling.block_length 32), but its length and temperature are the task's."""

    tasks: str = ""
    """Names of tasks of lm-evaluation-harness (pip install 'samestep[eval]'), with commas between them. Without any:
    the metrics of validation, on the run's test part (data.test_fraction), or where it has none on its validation part;
    the result says which."""
    include_path: Path | None = None
    """A folder with task files (YAML) of your own; local data needs no network."""
    limit: Count | None = None
    """Number of questions of each task."""
    fewshot: CountOrZero | None = None
    """Number of worked examples before each question, in place of the task's own number."""
    draws: Count = 128
    """Monte-Carlo draws for each likelihood."""
    max_new_tokens: Count | None = None
    """Tokens to generate where a task sets no number; null is a quarter of what the network takes: LLaDA's 1024."""
    chat: bool = False
    """Ask as a user of a chat: for instruction-tuned models."""
    allow_code: bool = False
    """Allow tasks, such as humaneval and mbpp, that run the programs which the model writes: on this machine and as
    you, so they can read, change and send whatever you can. Use a container without your files and without network."""
    dtype: Dtype | None = None
    """Type of the network, in place of the type the model was trained in."""

    def __post_init__(self) -> None:
        """Refuse wrong options before the model is opened."""
        given = [each.name for each in fields(self) if getattr(self, each.name) != each.default]
        if not self.names and (others := [name for name in given if name not in ("tasks", "dtype")]):
            raise UserError(f"Name the tasks that --{others[0]} is for: --tasks NAME,...; or leave it out.")
        if self.include_path is not None and not self.include_path.is_dir():
            raise UserError(f"Give --include_path a folder with task files; {self.include_path} is not a folder.")

    @property
    def names(self) -> list[str]:
        return [name for name in self.tasks.split(",") if name]


def evaluate(trained: Trained, options: EvaluationOptions, world: World) -> Mapping[str, Any]:
    """The harness's results of a trained model, on rank 0; without tasks, the metrics of what its run held back."""
    if not options.names:
        if trained.run is None:
            raise UserError(f"Name tasks for {trained.source}, --tasks NAME,...: only a run has held back data.")
        return measure_held_out(trained, options.dtype, world)
    try:
        harness = importlib.import_module("lm_eval")
    except ImportError:
        raise UserError("samestep evaluate needs lm-evaluation-harness: pip install 'samestep[eval]'") from None
    tokenizer = model_tokenizer(trained)
    index = _find_tasks(options)
    if options.allow_code:
        os.environ["HF_ALLOW_CODE_EVAL"] = "1"
    with ExitStack() as stack:

        @cache
        def model() -> HarnessModel:  # opened by the first request, once the tasks are known to be usable
            module = stack.enter_context(open_network(trained, world.device, options.dtype))
            return HarnessModel(module, tokenizer, trained.config, options, world)

        try:
            results = harness.simple_evaluate(
                _as_harness_model(model),
                tasks=options.names,
                task_manager=index,
                num_fewshot=options.fewshot,
                limit=options.limit,
                log_samples=False,
                bootstrap_iters=1000,
                confirm_run_unsafe_code=options.allow_code,
            )
        except ValueError as error:
            if options.allow_code or not any(mark in str(error) for mark in RUNS_CODE):
                raise
            raise _refused_code(options.tasks) from None
    return dict(results or {})


def _find_tasks(options: EvaluationOptions) -> Any:
    """The harness's index of tasks; its thousands of default tasks are indexed only if one of them is named."""
    manager = importlib.import_module("lm_eval.tasks").TaskManager
    own = None if options.include_path is None else str(options.include_path)
    found = manager(include_path=own, include_defaults=False)
    if not set(options.names) <= set(found.all_tasks):
        found = manager(include_path=own)
    missing = [name for name in options.names if not found.match_tasks([name])]
    if missing:
        where = own or "the harness; give --include_path FOLDER for task files of your own"
        raise UserError(f"there is no task {missing[0]!r} in {where}")
    files = {name: getattr(found.task_index.get(name), "yaml_path", None) for name in found.match_tasks(options.names)}
    unsafe = [name for name, file in files.items() if _runs_code(file)]
    if unsafe and not options.allow_code:
        raise _refused_code(unsafe[0])
    return found


def _runs_code(path: Path | None) -> bool:
    """Whether a task's file, or one that it includes, marks it so. Loading the task would already run some code; what
    this does not find, such as in a group, the harness itself refuses."""
    if path is None or not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    included = re.search(r"^include:\s*(\S+)", text, re.MULTILINE)
    is_marked = re.search(r"^unsafe_code:\s*true", text, re.MULTILINE | re.IGNORECASE) is not None
    return is_marked or (included is not None and _runs_code(path.parent / included[1]))


def _refused_code(tasks: str) -> UserError:
    return UserError(
        f"{tasks} runs programs that the model writes, here and as you: leave it out, or allow it with --allow_code, "
        "best in a container without your files and without network"
    )


def _as_harness_model(model: Callable[[], "HarnessModel"]) -> Any:
    """The model as a subclass of the harness's `LM`."""

    def method(name: str) -> Callable[..., Any]:
        return lambda _, requests: getattr(model(), name)(requests)

    base = importlib.import_module("lm_eval.api.model").LM
    methods = ("loglikelihood", "loglikelihood_rolling", "generate_until")
    return type("SamestepModel", (base,), {name: method(name) for name in methods})()


def show_results(trained: Trained, results: Mapping[str, Any]) -> None:
    """Print them, one row per metric."""
    if "part" in results:
        show_metrics(trained, results)
        return
    numbers = [Column(name, is_number=True) for name in ("value", "error")]
    columns = (Column("task"), Column("questions", is_number=True), Column("metric"), *numbers)
    PlainConsole().print(Table(columns, list(metric_rows(results)), f"{trained.source}").drawn())


def metric_rows(results: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str, str]]:
    """Task, number of questions, metric, value and standard error: one row per metric."""
    for task, found in results["results"].items():
        questions = str(results.get("n-samples", {}).get(task, {}).get("effective", ""))
        for name, value in found.items():
            metric, _, filter_name = name.partition(",")
            if not filter_name or not isinstance(value, float | int) or metric.endswith("_stderr"):
                continue
            error = found.get(f"{metric}_stderr,{filter_name}")
            shown = metric if filter_name == "none" else f"{metric} ({filter_name})"
            yield task, questions, shown, f"{value:.4f}", f"{error:.4f}" if isinstance(error, float) else ""


@dataclass(frozen=True)
class HarnessModel:
    """Answers the requests of the harness."""

    module: nn.Module
    tokenizer: Tokenizer
    config: MdlmConfig
    options: EvaluationOptions
    world: World

    def loglikelihood(self, requests: Sequence[HarnessRequest]) -> list[tuple[float, bool]]:
        """For (context, continuation): the continuation's log-likelihood, and whether it is the greedy one."""

        def work(mine: Sequence[int]) -> list[Json]:
            pairs = [self._pair(*requests[number].args) for number in mine]
            greedy = is_greedy(
                self.module,
                pairs,
                vocabulary=self.tokenizer.vocabulary,
                batch_size=self.config.rows_at_once,
                cfg_scale=self.config.sampling.cfg_scale,
            )
            return list(zip(self._likelihoods(pairs, mine), greedy))

        return [(mean, greedy) for mean, greedy in self._split_among_ranks(len(requests), work)]

    def loglikelihood_rolling(self, requests: Sequence[HarnessRequest]) -> list[float]:
        """For (text,): a lower bound of its log-likelihood, in rows as in training, each by itself."""

        def work(mine: Sequence[int]) -> list[Json]:
            size = self.config.model.max_sequence_length
            texts = [self.tokenizer.encode(requests[number].args[0]) for number in mine]
            rows = [[text[at : at + size] for at in range(0, len(text), size)] for text in texts]
            keys = [(number << 32) + at for number, parts in zip(mine, rows) for at in range(len(parts))]
            means = iter(self._likelihoods([([], part) for parts in rows for part in parts], keys))
            return [sum(next(means) for _ in parts) for parts in rows]

        return self._split_among_ranks(len(requests), work)

    def generate_until(self, requests: Sequence[HarnessRequest]) -> list[str]:
        """For (context, settings): the generated continuation, up to the first of the settings' `until`."""

        every = [self._generation_args(*request.args) for request in requests]
        longest = max((options for _, options, _ in every), key=lambda options: options.max_new_tokens, default=None)
        if longest is not None:
            say_tokens_a_pass(longest, longest.max_new_tokens, self.world)

        def work(mine: Sequence[int]) -> list[Json]:
            wanted = [every[number] for number in mine]
            generated = [""] * len(mine)
            shapes = [(len(prompt), options) for prompt, options, _ in wanted]
            for batch in batches_by_shape(shapes, self.config.rows_at_once):
                texts = self._generate([wanted[at][0] for at in batch], wanted[batch[0]][1], [mine[at] for at in batch])
                for at, text in zip(batch, texts):
                    generated[at] = _cut_at(text, wanted[at][2])
            return list(generated)

        return self._split_among_ranks(len(requests), work)

    def _split_among_ranks(self, count: int, work: Callable[[Sequence[int]], list[Json]]) -> list[Json]:
        """The results of all requests, each computed by one rank and gathered on all."""
        parts = self.world.gather(work(range(self.world.rank, count, self.world.size)))
        return [parts[number % self.world.size][number // self.world.size] for number in range(count)]

    def _likelihoods(self, pairs: Sequence[PromptAnswer], ids: Sequence[int]) -> list[float]:
        found = log_likelihood(
            self.module,
            pairs,
            vocabulary=self.tokenizer.vocabulary,
            draws=self.options.draws,
            batch_size=self.config.rows_at_once,
            seed=self.config.seed,
            cfg_scale=self.config.sampling.cfg_scale,
            ids=list(ids),
        )
        return [estimate.mean for estimate in found]

    def _pair(self, context: str, continuation: str) -> PromptAnswer:
        """Prompt and answer in tokens; spaces between them belong to the answer, as in most tokenizers."""
        if self.options.chat:
            prompt, answer = self._prompt(context), self.tokenizer.encode(continuation.strip())
        else:
            end = len(context.rstrip())
            context, continuation = context[:end], context[end:] + continuation
            prompt = self.tokenizer.encode(context)
            answer = self.tokenizer.encode(context + continuation)[len(prompt) :]
        longest = self.config.model.max_sequence_length
        if len(answer) > longest:
            raise UserError(
                f"an answer of {len(answer)} tokens is longer than the network's {longest}; leave the task out"
            )
        return prompt[max(0, len(prompt) + len(answer) - longest) :], answer

    def _prompt(self, context: str) -> list[int]:
        if self.options.chat:
            return chat_prompt(self.tokenizer, [ChatMessage("user", context)])
        return self.tokenizer.encode(context)

    def _generation_args(
        self, context: str, settings: Mapping[str, Any]
    ) -> tuple[list[int], SamplingConfig, list[str]]:
        """The prompt, the sampling settings, and the strings to stop at."""
        until = settings.get("until") or []
        until = [until] if isinstance(until, str) else list(until)
        longest = self.config.model.max_sequence_length
        usual = self.options.max_new_tokens or max(1, longest // 4)
        length = min(int(settings.get("max_gen_toks", usual)), longest - 1)
        do_sample = bool(settings.get("do_sample", False))
        temperature = float(settings.get("temperature", self.config.sampling.temperature)) if do_sample else 0.0
        options = replace(self.config.sampling, max_new_tokens=length, temperature=temperature)
        return self._prompt(context)[-(longest - length) :], options, until

    def _generate(self, prompts: Sequence[list[int]], options: SamplingConfig, ids: Sequence[int]) -> list[str]:
        vocabulary, device = self.tokenizer.vocabulary, self.world.device
        given = torch.tensor(prompts, dtype=torch.int64, device=device).view(len(prompts), -1)
        keys = torch.tensor(ids, device=device)
        tokens = sample(self.module, given, options, seed=self.config.seed, ids=keys, vocabulary=vocabulary)
        return [self.tokenizer.decode(until_end(row, vocabulary)) for row in tokens[:, given.shape[1] :].tolist()]


def _cut_at(text: str, ends: Sequence[str]) -> str:
    """A text up to the first of the strings that end it."""
    return text[: min([text.find(end) for end in ends if end and end in text], default=len(text))]


@dataclass(frozen=True)
class Estimate:
    """A log-likelihood in nats, and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """From the draws in the order of their l.

        Neighbours have about the same l, hence their difference is noise alone; the spread of all draws would also
        count how the mean varies with l, which spreading the draws has removed. The error of one draw is unknown.
        """
        size = len(values)
        if size == 1:
            return cls(values[0], math.inf)
        squares = math.fsum((after - before) ** 2 for before, after in pairwise(values))
        return cls(math.fsum(values) / size, math.sqrt(squares / (2 * (size - 1) * size)))


@torch.no_grad()
def log_likelihood(
    module: nn.Module,
    pairs: Sequence[PromptAnswer],
    *,
    vocabulary: Vocabulary,
    draws: int,
    batch_size: int,
    seed: int,
    cfg_scale: float = 0.0,
    ids: Sequence[int] | None = None,
) -> list[Estimate]:
    """The log-likelihood of each answer after its prompt, from `draws` draws per pair.

    Noise is keyed by `ids`, by default the pairs' numbers. Rows of one length are batched, also those of several pairs.
    """
    assert draws > 0, f"an estimate needs at least one draw, not {draws}"
    keys = range(len(pairs)) if ids is None else ids
    # All draws of a one-token answer would be the same, and an answer without tokens needs none.
    draws_per_pair = [draws if len(answer) > 1 else len(answer) for _, answer in pairs]
    rows = [(number, draw) for number, count in enumerate(draws_per_pair) for draw in range(count)]
    values: list[list[float]] = [[] for _ in pairs]
    for batch in batches_by_shape([sum(map(len, pairs[number])) for number, _ in rows], batch_size):
        numbers = [rows[row][0] for row in batch]
        tokens, prompt = _rows([pairs[number] for number in numbers], module)
        which = torch.tensor([(keys[rows[row][0]], rows[row][1]) for row in batch], device=tokens.device)
        masked = choose_masked(~prompt, draws, seed, *which.unbind(1))
        for number, score in zip(numbers, _score(module, tokens, prompt, masked, vocabulary.required_mask, cfg_scale)):
            values[number].append(score)
    return [
        Estimate.of(found) if len(answer) > 1 else Estimate(sum(found), 0.0)
        for found, (_, answer) in zip(values, pairs)
    ]


def choose_masked(answer: Tensor, draws: int, seed: int, key: Tensor, draw: Tensor) -> Tensor:
    """Which tokens to mask among those marked in `answer` [rows, length], for draw `draw` [rows] of pair `key` [rows].

    A draw masks exactly l of them; the l of all draws are spread evenly between 1 and the answer's length.
    """
    size = answer.sum(1)
    offset = noise.uniform(seed, COUNT, key, dtype=torch.float64)
    count = torch.minimum(1 + (size * (draw + offset) / draws).long(), size)
    positions = torch.arange(answer.shape[1], device=answer.device)
    random = noise.uniform(seed, CHOICE, key[:, None], draw[:, None], positions, dtype=torch.float64)
    order = random.masked_fill(~answer, torch.inf).argsort(dim=1, stable=True)
    ranks = torch.empty_like(order).scatter_(1, order, positions.expand_as(order))
    return ranks < count[:, None]


@torch.no_grad()
def is_greedy(
    module: nn.Module, pairs: Sequence[PromptAnswer], *, vocabulary: Vocabulary, batch_size: int, cfg_scale: float = 0.0
) -> list[bool]:
    """Whether each answer is what the network generates at temperature 0, one token a pass, most confident first."""
    found = [True] * len(pairs)
    for batch in batches_by_shape([tuple(map(len, pair)) for pair in pairs], batch_size):
        tokens, prompt = _rows([pairs[number] for number in batch], module)
        for number, matches in zip(batch, _matches_greedy(module, tokens, prompt, vocabulary, cfg_scale).tolist()):
            found[number] = matches
    return found


def _rows(pairs: Sequence[PromptAnswer], module: nn.Module) -> tuple[Tensor, Tensor]:
    """Prompts and answers of one length in all as tokens [rows, length], and which of them are prompt."""
    device = next(module.parameters()).device
    tokens = torch.tensor([[*prompt, *answer] for prompt, answer in pairs], dtype=torch.int64, device=device)
    sizes = torch.tensor([len(prompt) for prompt, _ in pairs], device=device)
    return tokens, torch.arange(tokens.shape[1], device=device) < sizes[:, None]


def _score(
    module: nn.Module, tokens: Tensor, prompt: Tensor, masked: Tensor, mask: int, cfg_scale: float
) -> list[float]:
    """The score of each row's draw."""
    positions = masked.nonzero(as_tuple=True)
    shown = tokens.masked_fill(masked, mask)
    logits = logits_at(module, shown, positions, prompt=prompt, mask=mask, cfg_scale=cfg_scale)
    each = torch.zeros(tokens.shape, dtype=torch.float64, device=tokens.device)
    each.index_put_(positions, log_probability(logits, tokens[positions]))
    scores: list[float] = (each.sum(1) * (~prompt).sum(1) / masked.sum(1)).tolist()
    return scores


def _matches_greedy(
    module: nn.Module, tokens: Tensor, prompt: Tensor, vocabulary: Vocabulary, cfg_scale: float
) -> Tensor:
    """Whether greedy decoding gives each row's answer; in each pass the network sees the tokens decoded so far."""
    masked = ~prompt
    matches = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
    while bool(matches.any()) and bool(masked.any()):
        positions = masked.nonzero(as_tuple=True)
        shown = tokens.masked_fill(masked, vocabulary.required_mask)
        logits = logits_at(module, shown, positions, prompt=prompt, mask=vocabulary.required_mask, cfg_scale=cfg_scale)
        drafts, confidence = draft(logits, vocabulary.forbidden(logits.shape[-1]), 0.0, (), ())
        is_right = torch.zeros_like(masked).index_put_(positions, drafts == tokens[positions])
        scores = torch.full(tokens.shape, -torch.inf, dtype=confidence.dtype, device=tokens.device)
        best = scores.index_put_(positions, confidence).argsort(dim=1, descending=True, stable=True)[:, :1]
        matches &= is_right.gather(1, best)[:, 0]
        masked.scatter_(1, best, False)
    return matches
