"""`samestep evaluate`: a trained model on the tasks of lm-evaluation-harness, through its Python API.

The harness makes three kinds of request: how likely an answer is after a prompt, how likely a whole text is, and what
the model generates. Every rank gets all requests, computes its share, and gathers the rest: the results are those of
one process.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samestep import Trained, UserError, World
from samestep.core.config.bounds import Count, CountOrZero
from samestep.core.config.checked import CheckedConfig
from samestep.core.records import Json
from samestep.data.prepared.chats import ChatMessage, chat_prompt
from samestep.data.tokenizer.vocabulary import Tokenizer
from samestep.recipes.mdlm.config import MdlmConfig
from samestep.recipes.mdlm.generating import load_network, mixed_precision
from samestep.recipes.mdlm.likelihood import PromptAnswer, is_greedy, log_likelihood
from samestep.recipes.mdlm.pretrained import model_tokenizer
from samestep.recipes.mdlm.prompts import Dtype
from samestep.recipes.mdlm.sampling import SamplingConfig, batches_by_shape, sample, until_end

HarnessRequest = Any
"""The harness's own request class; its arguments are in `args`."""


@dataclass(frozen=True)
class EvaluationOptions(CheckedConfig):
    """Which tasks to evaluate, and how. Text is generated with the settings of `sampling` (--sampling.steps 64); the
    task sets its length and temperature."""

    tasks: str = ""
    """Names of tasks of lm-evaluation-harness (pip install 'samestep[eval]'), with commas between them."""
    include_path: Path | None = None
    """A folder with task files (YAML) of your own; local data needs no network."""
    limit: Count | None = None
    """Number of questions of each task."""
    fewshot: CountOrZero | None = None
    """Number of worked examples before each question, in place of the task's own number."""
    draws: Count = 128
    """Monte-Carlo draws for each likelihood."""
    chat: bool = False
    """Ask as a user of a chat: for instruction-tuned models."""
    dtype: Dtype | None = None
    """Type of the network, in place of the type the model was trained in."""

    def __post_init__(self) -> None:
        """Refuse wrong options before the model is opened."""
        if not self.names:
            raise UserError("Name at least one task: --tasks NAME,...")
        if self.include_path is not None and not self.include_path.is_dir():
            raise UserError(f"Give --include_path a folder with task files; {self.include_path} is not a folder.")

    @property
    def names(self) -> list[str]:
        """The names of the tasks."""
        return [name for name in self.tasks.split(",") if name]


def evaluate(trained: Trained, options: EvaluationOptions, world: World) -> Mapping[str, Any]:
    """The harness's results of a trained model, on rank 0."""
    harness = import_harness()
    tokenizer = model_tokenizer(trained)
    index = _find_tasks(options)
    module = load_network(trained, world.device, options.dtype)
    model = as_harness_model(HarnessModel(module, tokenizer, trained.config, options, world))
    with mixed_precision(module, trained.config, world.device, options.dtype):
        results = harness.simple_evaluate(
            model,
            tasks=options.names,
            task_manager=index,
            num_fewshot=options.fewshot,
            limit=options.limit,
            log_samples=False,
            bootstrap_iters=1000,
        )
    return dict(results or {})


def import_harness() -> Any:
    """lm-evaluation-harness, if it is installed."""
    try:
        return importlib.import_module("lm_eval")
    except ImportError:
        raise UserError("samestep evaluate needs lm-evaluation-harness: pip install 'samestep[eval]'") from None


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
    return found


def as_harness_model(model: "HarnessModel") -> Any:
    """The model as a subclass of the harness's `LM`."""
    base = importlib.import_module("lm_eval.api.model").LM
    methods = ("loglikelihood", "loglikelihood_rolling", "generate_until")
    return type("SamestepModel", (base,), {name: getattr(model, name) for name in methods})()


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
            return [[mean, greedy] for mean, greedy in zip(self._likelihoods(pairs, mine), self._are_greedy(pairs))]

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

        def work(mine: Sequence[int]) -> list[Json]:
            wanted = [self._generation_args(*requests[number].args) for number in mine]
            generated = [""] * len(mine)
            for batch in batches_by_shape(
                [(len(prompt), options) for prompt, options, _ in wanted], self.config.batch_size
            ):
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
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            cfg_scale=self.config.sampling.cfg_scale,
            ids=list(ids),
        )
        return [estimate.mean for estimate in found]

    def _are_greedy(self, pairs: Sequence[PromptAnswer]) -> list[bool]:
        return is_greedy(
            self.module,
            pairs,
            vocabulary=self.tokenizer.vocabulary,
            batch_size=self.config.batch_size,
            cfg_scale=self.config.sampling.cfg_scale,
        )

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
        length = min(int(settings.get("max_gen_toks", self.config.sampling.length)), longest - 1)
        do_sample = bool(settings.get("do_sample", False))
        temperature = float(settings.get("temperature", self.config.sampling.temperature)) if do_sample else 0.0
        options = replace(self.config.sampling, length=length, temperature=temperature)
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
