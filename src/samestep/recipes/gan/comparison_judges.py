"""Who compares two texts, and what is asked: the judge of a run, a language model, or a model behind an endpoint.

A judge reads what judges read in training (judges.py): the prompt and two texts, cut to one length. It answers 1 or 2
to a question. Every pair is shown in both orders: a judge that prefers the first text, whatever it says, then decides
nothing.
"""

import math
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samestep import CausalConfig, GenerationConfig, LanguageModel, Trained, UserError, World, open_language_model
from samestep.kit.generation import generator_outside
from samestep.models.decoding import position_limit
from samestep.models.log_probs import last_logits
from samestep.parallel.precision import autocast
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.endpoint import Endpoint
from samestep.recipes.gan.judges import (
    DEFAULT_CRITERION,
    JudgeConfig,
    Mode,
    PairWriter,
    answer_tokens,
    padded,
    read_answer,
    shown_length,
)
from samestep.recipes.gan.players import open_player
from samestep.recipes.gan.task import JUDGE
from samestep.train.trained.batch_inference import in_order, my_batches, network_of

REQUESTS_AT_ONCE = 4
"""Requests of a rank that an endpoint gets at the same time."""


@dataclass(frozen=True)
class Shown:
    """Two texts in the order in which a judge reads them, and the prompt that both answer."""

    prompt: str
    first: str
    second: str


@dataclass(frozen=True)
class Answer:
    """What a judge said."""

    choice: int | None
    """1 or 2; None where it said neither."""
    log_odds: float | None = None
    """verdict: the log-odds of 1 over 2."""
    text: str | None = None
    """generative: all that it wrote."""


def question(criterion: str) -> str | None:
    """What a judge is asked; None: what it was trained on."""
    if criterion == DEFAULT_CRITERION:
        return None
    return criterion if criterion.endswith(("?", ".", "!", ":")) else f"{criterion}?"


@dataclass(frozen=True)
class JudgeSettings:
    """What all judges have in common."""

    mode: Mode | None
    """None: as the judge was trained, or verdict."""
    max_tokens: int | None
    """Of each text; None: as the judge was trained."""
    answer_tokens: int | None
    """generative: tokens of an answer at most; None: as the judge was trained."""
    show_prompt: bool | None
    """None: as the judge was trained, or yes."""
    rows: int
    """Pairs that are read together."""

    def of(self, config: JudgeConfig) -> JudgeConfig:
        """How a judge is used. Texts without anything to judge are not shown to it, so any length will do."""
        if self.show_prompt is not None:
            config = replace(config, template=None, show_prompt=self.show_prompt)
        return replace(
            config,
            mode=self.mode or config.mode,
            min_tokens=1,
            max_tokens=self.max_tokens or config.max_tokens,
            answer_tokens=self.answer_tokens or config.answer_tokens,
        )


@dataclass(frozen=True)
class LocalJudge:
    """A language model in this process."""

    name: str
    player: LanguageModel
    network: Callable[[], tuple[nn.Module, torch.dtype | None]]
    """Loads it; with the type that it computes in where that is not the type of its weights."""
    config: JudgeConfig
    settings: JudgeSettings
    world: World

    def __post_init__(self) -> None:
        """Refuse a judge that cannot answer, before anything is written."""
        if self.mode == "verdict":
            try:
                answer_tokens(self.player.encode)
            except UserError as error:
                raise UserError(f"{self.name} cannot judge by its odds: try --judge_mode generative. {error}") from None

    @property
    def mode(self) -> Mode:
        return self.config.mode

    def ask(self, criteria: Sequence[str], shown: Sequence[Shown]) -> list[list[Answer]]:
        """The answers for each criterion, on every rank. Collective; the network is in memory only meanwhile."""
        if not shown:
            return [[] for _ in criteria]
        network, compute = self.network()
        with torch.no_grad(), autocast(self.world.device, compute):
            return [self._ask(network, criterion, shown) for criterion in criteria]

    def _ask(self, network: nn.Module, criterion: str, shown: Sequence[Shown]) -> list[Answer]:
        encode, limit = self.player.encode, position_limit(network)
        write = PairWriter(encode, self.config, self.player.around, limit, question(criterion))
        pairs = [write(one.prompt, one.first, one.second).orders[0] for one in shown]
        read = self._written if self.mode == "generative" else self._verdicts
        mine: dict[int, dict[str, Any]] = {}
        for batch in my_batches([len(pair) for pair in pairs], self.settings.rows, self.world):
            answers = read(network, [pairs[number] for number in batch])
            mine |= zip(batch, map(asdict, answers), strict=True)
        return [Answer(**fields) for fields in in_order(self.world.gather(list(mine.items())))]

    def _verdicts(self, network: nn.Module, pairs: list[list[int]]) -> list[Answer]:
        if not pairs:
            return []
        rows = padded("pair", pairs, self.player.pad, self.world.device)
        logits = last_logits(network, rows["pair"], rows["is_pair"])
        one, two = answer_tokens(self.player.encode)
        return [_verdict(value) for value in (logits[:, one].double() - logits[:, two].double()).tolist()]

    def _written(self, network: nn.Module, pairs: list[list[int]]) -> list[Answer]:
        """All ranks take part, also one without pairs."""
        how = GenerationConfig(max_new_tokens=self.config.answer_tokens, temperature=0.0)
        player, rows = self.player, self.settings.rows
        generate = generator_outside(player, "gan/compare/judge", how, 0, self.world, rows)
        ids = torch.zeros(len(pairs), 2, dtype=torch.int64)  # the likeliest tokens need no noise
        texts = [player.decode(tokens) for tokens in generate(network, pairs, ids, step=0).to_lists()]
        return [Answer(read_answer(text), text=text) for text in texts]


def _verdict(log_odds: float) -> Answer:
    """A network that gives no numbers gives no answer."""
    if math.isnan(log_odds):
        return Answer(None)
    return Answer(1 if log_odds > 0 else 2 if log_odds < 0 else None, log_odds)


@dataclass(frozen=True)
class EndpointJudge:
    """A model behind an endpoint. Every rank asks for its share."""

    endpoint: Endpoint
    max_words: int
    """Words of each text that are sent, at most."""
    show_prompt: bool
    world: World
    mode: Mode = "generative"

    @property
    def name(self) -> str:
        return f"{self.endpoint.model} at {self.endpoint.url}"

    def ask(self, criteria: Sequence[str], shown: Sequence[Shown]) -> list[list[Answer]]:
        return [self._ask(criterion, shown) for criterion in criteria]

    def _ask(self, criterion: str, shown: Sequence[Shown]) -> list[Answer]:
        numbers = range(self.world.rank, len(shown), self.world.size)
        messages = [self._message(criterion, shown[number]) for number in numbers]
        parts = self.world.run_on_all_ranks(
            f"asking {self.name}", lambda: list(zip(numbers, self._send(messages), strict=True))
        )
        return [Answer(read_answer(text), text=text) for text in in_order(parts)]

    def _send(self, messages: Sequence[str]) -> list[str]:
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            waiting = [pool.submit(self.endpoint, message) for message in messages]
            try:
                return [one.result() for one in waiting]
            except UserError:
                pool.shutdown(wait=False, cancel_futures=True)  # the others would fail in the same way
                raise

    def _message(self, criterion: str, shown: Shown) -> str:
        parts = JudgeConfig(mode=self.mode, show_prompt=self.show_prompt).parts(question(criterion))
        first, second = cut_alike(shown.first, shown.second, self.max_words)
        fields = {"prompt": shown.prompt.strip(), "text_1": first, "text_2": second, "": ""}
        return "".join(text + fields[field] for text, field in parts)


def cut_alike(first: str, second: str, most: int) -> tuple[str, str]:
    """Both texts as training cuts them, by words: for a judge whose tokens are not known."""
    words = [re.findall(r"\s*\S+", text.strip()) for text in (first, second)]
    length = shown_length(len(words[0]), len(words[1]), most)
    return "".join(words[0][:length]), "".join(words[1][:length])


def label(trained: Trained) -> str:
    """A name of a trained model for people: its run, stage and step."""
    where = trained.run.path.name if trained.run else trained.source.name
    step = trained.source.name.removeprefix("step_").lstrip("0")
    return f"{where} ({trained.stage}, step {step or 0})" if step.isdigit() and trained.stage else where


ComparisonJudge = LocalJudge | EndpointJudge


def run_judge(trained: Trained, settings: JudgeSettings, world: World) -> LocalJudge:
    """The judge of a run. Collective."""
    config: GanConfig = trained.config
    trained.learner_name(JUDGE)  # a run that has none is refused now
    player, used = open_player(config.judge, config.model_name, world), settings.of(config.judging)
    network = partial(network_of, trained, JUDGE, world.device)
    return LocalJudge(f"the judge of {label(trained)}", player, network, used, settings, world)


def model_judge(name: str, settings: JudgeSettings, world: World) -> LocalJudge:
    """A language model in a folder, of the Hub or of a run. Collective, since it may be downloaded."""
    # On a CPU many operations are slow or missing in the smaller types.
    dtype = "float32" if world.device.type == "cpu" else "auto"
    model = open_language_model(name, world, shape=CausalConfig(), dtype=dtype)

    def network() -> tuple[nn.Module, None]:
        return model.network().to(world.device).eval(), None

    shown = Path(name).resolve().name if Path(name).exists() else name
    return LocalJudge(shown, model, network, settings.of(JudgeConfig()), settings, world)
