"""`samestep evaluate`: a trained model put to the tasks of lm-evaluation-harness, through its Python API.

The harness asks three things of a model: how likely an answer is after a prompt, how likely a whole text is, and what
it writes. Every rank is asked everything, computes its share, and all ranks tell each other: the results are those of
one process.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samestep.core.errors import UserError
from samestep.core.records import Json
from samestep.data.prepared.chats import Message, chat_prompt
from samestep.data.tokenizer.vocabulary import Tokenizer
from samestep.recipes.mdlm.config import MdlmConfig
from samestep.recipes.mdlm.generating import arithmetic, load_network
from samestep.recipes.mdlm.likelihood import Pair, is_greedy, log_likelihood
from samestep.recipes.mdlm.pretrained import tokenizer_of
from samestep.recipes.mdlm.sampling import SamplingConfig, alike, sample, until_end
from samestep.train.pretrained.trained import Trained
from samestep.world.world import World

Request = Any
"""The harness's own record of a question; `args` holds it."""


@dataclass(frozen=True)
class Questions:
    """What to ask."""

    tasks: Sequence[str]
    include_path: Path | None = None
    """A folder with task files of one's own."""
    limit: int | None = None
    """Questions of each task; None: all."""
    fewshot: int | None = None
    """Worked examples before each question; None: as the task says."""
    draws: int = 128
    """Monte-Carlo draws for each likelihood."""
    chat: bool = False
    """Ask as a user of a chat would."""


def evaluate(
    trained: Trained, tasks: Sequence[str], *, world: World, dtype: str | None = None, **how: Any
) -> Mapping[str, Any]:
    """The harness's results of a trained model, on rank 0; `how` is further fields of `Questions`."""
    harness, questions = import_harness(), Questions(tasks, **how)
    tokenizer = tokenizer_of(trained)
    index = _find_tasks(questions)
    module = load_network(trained, world.device, dtype)
    judge = as_harness_model(HarnessModel(module, tokenizer, trained.config, questions, world))
    with arithmetic(trained.config, world.device, dtype):
        results = harness.simple_evaluate(
            judge,
            tasks=list(questions.tasks),
            task_manager=index,
            num_fewshot=questions.fewshot,
            limit=questions.limit,
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


def _find_tasks(questions: Questions) -> Any:
    """The harness's index of tasks; its own many thousand ones are left out where one's own are all that is asked."""
    manager = importlib.import_module("lm_eval.tasks").TaskManager
    own = None if questions.include_path is None else str(questions.include_path)
    found = manager(include_path=own, include_defaults=False)
    if not set(questions.tasks) <= set(found.all_tasks):
        found = manager(include_path=own)
    missing = [name for name in questions.tasks if not found.match_tasks([name])]
    if missing:
        where = own or "the harness; give --include_path FOLDER for task files of your own"
        raise UserError(f"there is no task {missing[0]!r} in {where}")
    return found


def as_harness_model(judge: "HarnessModel") -> Any:
    """The judge as a model that the harness accepts."""
    base = importlib.import_module("lm_eval.api.model").LM
    asked = ("loglikelihood", "loglikelihood_rolling", "generate_until")
    return type("SamestepModel", (base,), {name: getattr(judge, name) for name in asked})()


@dataclass(frozen=True)
class HarnessModel:
    """Answers what the harness asks."""

    module: nn.Module
    tokenizer: Tokenizer
    config: MdlmConfig
    questions: Questions
    world: World

    def loglikelihood(self, requests: Sequence[Request]) -> list[tuple[float, bool]]:
        """For (context, continuation): the continuation's log-likelihood, and whether it is what would be written."""

        def work(mine: Sequence[int]) -> list[Json]:
            pairs = [self._pair(*requests[number].args) for number in mine]
            return [[mean, sure] for mean, sure in zip(self._likelihoods(pairs, mine), self._are_greedy(pairs))]

        return [(mean, sure) for mean, sure in self._shared(len(requests), work)]

    def loglikelihood_rolling(self, requests: Sequence[Request]) -> list[float]:
        """For (text,): a lower bound of its log-likelihood, in rows as in training, each by itself."""

        def work(mine: Sequence[int]) -> list[Json]:
            size = self.config.model.max_sequence_length
            texts = [self.tokenizer.encode(requests[number].args[0]) for number in mine]
            rows = [[text[at : at + size] for at in range(0, len(text), size)] for text in texts]
            keys = [(number << 32) + place for number, parts in zip(mine, rows) for place in range(len(parts))]
            means = iter(self._likelihoods([([], part) for parts in rows for part in parts], keys))
            return [sum(next(means) for _ in parts) for parts in rows]

        return self._shared(len(requests), work)

    def generate_until(self, requests: Sequence[Request]) -> list[str]:
        """For (context, settings): what is written after it, up to the first of the settings' `until`."""

        def work(mine: Sequence[int]) -> list[Json]:
            wanted = [self._page(*requests[number].args) for number in mine]
            written = [""] * len(mine)
            for batch in alike([(len(prompt), options) for prompt, options, _ in wanted], self.config.batch_size):
                texts = self._write([wanted[at][0] for at in batch], wanted[batch[0]][1], [mine[at] for at in batch])
                for at, text in zip(batch, texts):
                    written[at] = _before(text, wanted[at][2])
            return list(written)

        return self._shared(len(requests), work)

    def _shared(self, count: int, work: Callable[[Sequence[int]], list[Json]]) -> list[Json]:
        """The answers to all questions, each worked out by one rank."""
        parts = self.world.gather(work(range(self.world.rank, count, self.world.size)))
        return [parts[number % self.world.size][number // self.world.size] for number in range(count)]

    def _likelihoods(self, pairs: Sequence[Pair], ids: Sequence[int]) -> list[float]:
        found = log_likelihood(
            self.module,
            pairs,
            vocabulary=self.tokenizer.vocabulary,
            draws=self.questions.draws,
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            cfg_scale=self.config.sampling.cfg_scale,
            ids=list(ids),
        )
        return [estimate.mean for estimate in found]

    def _are_greedy(self, pairs: Sequence[Pair]) -> list[bool]:
        return is_greedy(
            self.module,
            pairs,
            vocabulary=self.tokenizer.vocabulary,
            batch_size=self.config.batch_size,
            cfg_scale=self.config.sampling.cfg_scale,
        )

    def _pair(self, context: str, continuation: str) -> Pair:
        """Prompt and answer in tokens; blanks between them belong to the answer, as tokenizers have it."""
        if self.questions.chat:
            prompt, answer = self._prompt(context), self.tokenizer.encode(continuation.strip())
        else:
            blanks = len(context) - len(context.rstrip())
            context, continuation = context[: len(context) - blanks], context[len(context) - blanks :] + continuation
            prompt = self.tokenizer.encode(context)
            answer = self.tokenizer.encode(context + continuation)[len(prompt) :]
        room = self.config.model.max_sequence_length
        if len(answer) > room:
            raise UserError(
                f"an answer of {len(answer)} tokens is longer than the network's {room}; leave the task out"
            )
        return prompt[max(0, len(prompt) + len(answer) - room) :], answer

    def _prompt(self, context: str) -> list[int]:
        if self.questions.chat:
            return chat_prompt(self.tokenizer, [Message("user", context)])
        return self.tokenizer.encode(context)

    def _page(self, context: str, settings: Mapping[str, Any]) -> tuple[list[int], SamplingConfig, list[str]]:
        """The prompt, how to go on from it, and where to stop."""
        until = settings.get("until") or []
        until = [until] if isinstance(until, str) else list(until)
        room = self.config.model.max_sequence_length
        length = min(int(settings.get("max_gen_toks", self.config.sampling.length)), room - 1)
        drawn = bool(settings.get("do_sample", False))
        temperature = float(settings.get("temperature", self.config.sampling.temperature)) if drawn else 0.0
        options = replace(self.config.sampling, length=length, temperature=temperature)
        return self._prompt(context)[-(room - length) :], options, until

    def _write(self, prompts: Sequence[list[int]], options: SamplingConfig, ids: Sequence[int]) -> list[str]:
        vocabulary, device = self.tokenizer.vocabulary, self.world.device
        given = torch.tensor(prompts, dtype=torch.int64, device=device).view(len(prompts), -1)
        keys = torch.tensor(ids, device=device)
        tokens = sample(self.module, given, options, seed=self.config.seed, ids=keys, vocabulary=vocabulary)
        return [self.tokenizer.decode(until_end(row, vocabulary)) for row in tokens[:, given.shape[1] :].tolist()]


def _before(text: str, ends: Sequence[str]) -> str:
    """A text up to the first of the words that end it."""
    return text[: min([text.find(end) for end in ends if end and end in text], default=len(text))]
