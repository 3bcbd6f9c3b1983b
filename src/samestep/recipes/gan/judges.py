"""What the judge is shown, and the two kinds of judge: by the odds of two answers, or by what it writes after reasons.

A judge reads a prompt and two texts that answer it, one of them written by a person. Both texts are treated alike,
whoever wrote them: what is around them (spaces, line ends) is left out, and they are cut to one length, in the judge's
tokens, at which neither of them ends. So neither length nor ending gives the answer away. A completion with fewer than
`min_tokens` tokens is not shown: it counts as caught, or a generator could win by writing nothing to judge.

Every pair is judged in both orders, and the two are averaged: a judge that prefers the first text then decides nothing.
Both orders have the same noise, so where the two texts change places, so does the outcome.

Both kinds of judge ask a network about such pairs and return the same rows; [rows, 2] is by order, with the person's
text first and then second:

    right           [rows, 2]: whether the judge found what a person wrote: 1, 0, or 0.5 where both are equally likely
    reward          [rows]: what the generator gets, by how far the judge was fooled
    log_odds        [rows], verdict alone: the same as log-odds; -inf where a completion was too short to judge
    judge_reward    [rows, 2]: what the judge gets, where it learns by policy gradient
    parsed          [rows, 2]: whether its answer could be read
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from samestep import (
    Batch,
    Bench,
    GenerationConfig,
    LanguageModel,
    LocalGenerator,
    UserError,
    completion_log_probs,
)
from samestep.core.config.bounds import Count, Positive
from samestep.core.config.checked import CheckedConfig
from samestep.core.errors import quoted
from samestep.kit.generation import generator_in_stage
from samestep.models.decoding import left_pad
from samestep.models.log_probs import last_logits
from samestep.models.wide import wide

Encode = Callable[[str], Sequence[int]]
Mode = Literal["verdict", "generative"]
DEFAULT_CRITERION = "Which of two texts did a person write?"
"""What a judge of this recipe is trained to tell."""
ORDERS = (1, 2)
"""Where the human text stands, in the orders in which a pair is judged."""
TEMPLATE = "{question}\n\nBoth texts answer this:\n{prompt}\n\nText 1:\n{text_1}\n\nText 2:\n{text_2}"
WITHOUT_PROMPT = "{question}\n\nText 1:\n{text_1}\n\nText 2:\n{text_2}"
"""What a judge reads, where the configuration has no template of its own."""
_BOX = re.compile(r"\\boxed\{([^{}]*)\}")
_MOST_LEFT_OUT = 16


def with_instruction(question: str, mode: Mode) -> str:
    """A question about two texts, and how it is to be answered."""
    if mode == "generative":
        return f"{question} Think about it in a few sentences, then end with \\boxed{{1}} or \\boxed{{2}}."
    return f"{question} Answer 1 or 2."


def template_parts(template: str) -> list[tuple[str, str]]:
    """The parts of a template: some text, and the field behind it; "" where none is."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as problem:
        raise UserError(f"Fix judging.template: {problem}; write {{{{ and }}}} for braces.") from None
    fields = [f"{field}{'!' if way else ''}{':' if form else ''}" for _, field, form, way in parts if field is not None]
    texts = {"text_1", "text_2"}
    if len(set(fields)) < len(fields) or not texts <= set(fields) <= {*texts, "prompt", "question"}:
        raise UserError(
            "Name {text_1} and {text_2} once each in judging.template, {prompt} and {question} once at most, and write "
            f"{{{{ and }}}} for other braces; it has {quoted(fields)}."
        )
    return [(text, field or "") for text, field, *_ in parts]


def shown_length(first: int, second: int, most: int) -> int:
    """How much of two texts is shown, given their lengths. Where a text ends is not seen, nor the words before it: of
    the shorter one, a quarter is left out, of a long one 16 tokens; but one token is left."""
    shorter = min(first, second)
    return min(shorter - min(shorter // 2, -(-shorter // 4), _MOST_LEFT_OUT), most)


@dataclass(frozen=True)
class JudgeConfig(CheckedConfig):
    """How the judge tells texts apart."""

    mode: Mode = "verdict"
    """verdict: one look at the odds of the answers 1 and 2. generative: the judge writes its reasons, then \\boxed{1}
    or \\boxed{2}."""
    training: Literal["cross_entropy", "policy_gradient"] = "cross_entropy"
    """How a verdict is learned; a generative judge always learns by policy gradient."""
    template: str | None = None
    """What the judge reads, with {text_1}, {text_2} and, where wanted, {prompt} and {question} (what this recipe asks,
    and how it is answered); null: question, prompt and texts."""
    show_prompt: bool = True
    """Show the judge the prompt: nothing else rewards a text that answers it."""
    max_prompt_tokens: Count = 256
    """Tokens of the prompt that the judge is shown, at most; the rest is cut, and counted."""
    min_tokens: Count = 1
    """A completion with fewer tokens counts as caught."""
    max_tokens: Count = 256
    """Tokens of each text that the judge is shown, at most."""
    answer_tokens: Count = 256
    """generative: tokens that the judge may write."""
    temperature: Positive = 1.0
    """generative: how freely the judge writes."""
    unparsed_fools: bool = False
    """generative: count an answer that cannot be read as a fooled judge, as older programs did."""

    @property
    def learns_by_policy_gradient(self) -> bool:
        return self.mode == "generative" or self.training == "policy_gradient"

    def parts(self, question: str | None = None) -> list[tuple[str, str]]:
        """What the judge reads, as text and the field behind it, with the question filled in. A template that has no
        place for another question than it was trained on is not used for one."""
        own = self.template
        if own is None or (question is not None and "{question}" not in own):
            own = TEMPLATE if self.show_prompt else WITHOUT_PROMPT
        asked = with_instruction(question or DEFAULT_CRITERION, self.mode)
        found = [("", "")]
        for text, field in template_parts(own):
            before = found.pop()[0] if not found[-1][1] else ""
            found.append((before + text + asked, "") if field == "question" else (before + text, field))
        return found

    def __post_init__(self) -> None:
        if self.template is not None:
            template_parts(self.template)
        if self.min_tokens > self.max_tokens:
            raise UserError(
                f"Set judging.min_tokens between 1 and judging.max_tokens={self.max_tokens}; it is {self.min_tokens}."
            )


@dataclass(frozen=True)
class Pair:
    """A person's text and a completion as the judge is shown them."""

    orders: tuple[list[int], list[int]]
    """All that the judge reads, up to its answer: with the person's text first, and second; equally long."""
    is_shown: bool
    """Whether there is enough of the completion to judge."""
    is_prompt_cut: bool = False


class PairWriter:
    """Makes what a judge reads, in its tokens.

    `around` gives what stands before and after a text that begins as given: by a chat template, or nothing after.
    `limit` is how many tokens the judge's network takes in all; prompt and texts are cut so that they fit. `question`
    is asked in place of what a judge of this recipe is trained to tell.
    """

    def __init__(
        self,
        encode: Encode,
        config: JudgeConfig,
        around: Callable[[str], tuple[Sequence[int], Sequence[int]]],
        limit: int | None = None,
        question: str | None = None,
    ) -> None:
        self._encode, self._config = encode, config
        (begin, first), *rest = config.parts(question)
        before, after = around(begin)
        self._parts = [(before, first), *((encode(text) if text else [], field) for text, field in rest)]
        self._parts.append((after or encode("\n\nAnswer: "), ""))
        self._room: int | None = None
        self._has_prompt = any(field == "prompt" for _, field in self._parts)
        self._prompt = config.max_prompt_tokens if self._has_prompt else 0
        if limit is not None:
            answer = config.answer_tokens if config.mode == "generative" else 0
            self._room = max(0, limit - answer - sum(len(tokens) for tokens, _ in self._parts))
            self._prompt = min(self._prompt, max(self._room - 2 * config.max_tokens, self._room // 3))
        if (least := self._most(self._prompt)) < config.min_tokens:
            raise UserError(
                f"Use a judge that takes more tokens, or lower judging.answer_tokens or judging.min_tokens: of the "
                f"{limit} that it takes, {least} are left for each of the two texts."
            )

    def _most(self, prompt: int) -> int:
        """Tokens that each text may have beside so many of the prompt."""
        most = self._config.max_tokens
        return most if self._room is None else min(most, (self._room - prompt) // 2)

    def __call__(self, prompt: str, human: str, written: str) -> Pair:
        """A person's text and a completion of the same prompt, in both orders."""
        asked = self._encode(prompt.strip()) if self._has_prompt else []
        mine, theirs = (self._encode(text.strip()) for text in (human, written))
        shown = asked[: self._prompt]
        length = shown_length(len(mine), len(theirs), self._most(len(shown)))
        texts = mine[:length], theirs[:length]
        is_shown = length > 0 and len(theirs) >= self._config.min_tokens
        orders = self._read(shown, *texts), self._read(shown, *reversed(texts))
        return Pair(orders, is_shown, len(shown) < len(asked))

    def _read(self, prompt: Sequence[int], first: Sequence[int], second: Sequence[int]) -> list[int]:
        fields = {"prompt": prompt, "text_1": first, "text_2": second, "": ()}
        return [token for text, field in self._parts for token in (*text, *fields[field])]


def answer_tokens(encode: Encode) -> tuple[int, int]:
    """The tokens of the answers 1 and 2, whose odds are the verdict."""
    found = [list(encode(answer)) for answer in ("1", "2")]
    if any(len(tokens) != 1 for tokens in found) or found[0] == found[1]:
        raise UserError(
            f"Use another judge, or judging.mode=generative; its tokenizer makes {found[0]} of 1 and {found[1]} of 2, "
            "where a verdict needs one token each."
        )
    return found[0][0], found[1][0]


def read_answer(text: str) -> int | None:
    """The answer in what a generative judge wrote: its last box; None where that holds neither 1 nor 2."""
    boxes = _BOX.findall(text)
    answer = boxes[-1].strip() if boxes else ""
    return int(answer) if answer in ("1", "2") else None


def answer_rewards(answer: int | None, right: int, config: JudgeConfig) -> tuple[float, float]:
    """The rewards of judge and generator for an answer that was read: a judge is right (1) or wrong (0) and the
    generator gets the rest. One that cannot be read is worse than wrong (-1), and nobody was fooled by it."""
    if answer is None:
        return -1.0, float(config.unparsed_fools)
    return float(answer == right), float(answer != right)


VERDICT = "verdict"
"""The term of a judge's loss."""


class Judge(Protocol):
    """How a network judges pairs, and what it learns from that."""

    def ask(
        self, network: nn.Module, pairs: Sequence[Pair], ids: Tensor, *, step: int, turn: int | None
    ) -> dict[str, Tensor]:
        """The rows of some pairs, with all that `loss` needs; `ids` and the turn of a step key what is sampled. Without
        a turn, the rows are not learned from."""

    def loss(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """The term `verdict` of rows that have a `judge_advantage` if the judge learns by policy gradient."""

    def count(self, batch: Batch) -> Tensor:
        """What each row weighs in the loss: 1 or the tokens written where the pair was shown, else 0."""


def make_judge(bench: Bench, config: JudgeConfig, reader: LanguageModel) -> Judge:
    """The judge that a configuration asks for."""
    return (GenerativeJudge if config.mode == "generative" else VerdictJudge)(bench, config, reader)


class VerdictJudge:
    """One look at a pair in each order: the odds of the answers 1 and 2, of these two alone.

    Log-odds are averaged, not probabilities: a preference for the first text is added to them, and cancels whole.
    """

    def __init__(self, bench: Bench, config: JudgeConfig, reader: LanguageModel) -> None:
        self._config, self._pad = config, reader.pad
        self._device, self._draws = bench.world.device, bench.draws("gan/verdict")
        self._answers = torch.tensor(answer_tokens(reader.encode), device=self._device)

    def ask(
        self, network: nn.Module, pairs: Sequence[Pair], ids: Tensor, *, step: int, turn: int | None
    ) -> dict[str, Tensor]:
        """A completion that is too short to judge is caught: the judge was right about it, and it earns nothing."""
        rows = _pair_rows(pairs, self._pad, self._device)
        margins, shown = self.margins(network, rows), rows["is_shown"]
        # In bf16 logits are often equal, where the judge has not decided: half right.
        right = (margins > 0).to(margins.dtype) + 0.5 * (margins == 0)
        right = torch.where(shown[:, None], right, 1.0)
        fooled = torch.where(shown, -margins.mean(1), -torch.inf)
        rows |= {"right": right, "reward": torch.sigmoid(fooled), "log_odds": fooled, "judge_reward": right}
        if self._config.training == "policy_gradient" and turn is not None:
            rows["judge_reward"] = self._drawn(margins, ids.to(self._device), step, turn)
        return {**rows, "parsed": torch.ones_like(right, dtype=torch.bool)}

    def margins(self, network: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
        """[rows, 2]: the log-odds of the right answer, in each order."""
        logits = last_logits(network, rows["pair"].flatten(0, 1), rows["is_pair"].flatten(0, 1))
        both = wide(logits[:, self._answers]).view(-1, 2, 2)
        of_first = both[..., 0] - both[..., 1]
        return torch.stack([of_first[:, 0], -of_first[:, 1]], 1)

    def _drawn(self, margins: Tensor, ids: Tensor, step: int, turn: int) -> Tensor:
        """Whether an answer that is drawn is right [rows, 2], by the same noise in both orders."""
        right, wrong = logsigmoid(margins), logsigmoid(-margins)
        odds = torch.stack([right[:, 0], wrong[:, 0]], 1), torch.stack([wrong[:, 1], right[:, 1]], 1)
        drawn = [self._draws.pick(of_order, step=step, ids=ids, position=turn) for of_order in odds]
        return torch.stack([drawn[0] == 0, drawn[1] == 1], 1).to(margins.dtype)

    def loss(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Cross-entropy of the right answer in both orders, or the policy gradient of those that were drawn."""
        margins = self.margins(network, batch)
        if self._config.training == "policy_gradient":
            return _policy_terms(batch, logsigmoid(torch.where(batch["judge_reward"] == 1, margins, -margins)))
        return {VERDICT: torch.where(batch["is_shown"], -logsigmoid(margins).sum(1), 0.0)}

    def count(self, batch: Batch) -> Tensor:
        return batch["is_shown"] * len(ORDERS)


class GenerativeJudge:
    """Writes its reasons and an answer in a box, in each order; learns by policy gradient from having been right."""

    def __init__(self, bench: Bench, config: JudgeConfig, reader: LanguageModel) -> None:
        self._bench, self._config, self._reader, self._device = bench, config, reader, bench.world.device
        self._writing = GenerationConfig(max_new_tokens=config.answer_tokens, temperature=config.temperature)
        self._generators: dict[int | None, LocalGenerator] = {}

    def ask(
        self, network: nn.Module, pairs: Sequence[Pair], ids: Tensor, *, step: int, turn: int | None
    ) -> dict[str, Tensor]:
        """The rows also have exactly the tokens that the judge sampled."""
        prompts = [tokens for pair in pairs for tokens in pair.orders]
        written = self._generator(turn)(network, prompts, ids.repeat_interleave(len(ORDERS), 0), step=step)
        answers = [read_answer(self._reader.decode(tokens)) for tokens in written.to_lists()]
        rewards = [answer_rewards(answer, right, self._config) for answer, right in zip(answers, ORDERS * len(pairs))]
        rows = _pair_rows(pairs, self._reader.pad, self._device)
        rows |= {"judged": _by_order(written.tokens), "is_judged": _by_order(written.mask)}
        shown, dtype = rows["is_shown"], written.log_probs.dtype
        judge, generator = map(_by_order, torch.tensor(rewards, dtype=dtype, device=self._device).unbind(1))
        right = torch.where(shown[:, None], (judge == 1).to(dtype), 1.0)
        parsed = _by_order(torch.tensor([answer is not None for answer in answers], device=self._device))
        rows |= {"right": right, "reward": torch.where(shown, generator.mean(1), 0.0), "judge_reward": judge}
        return {**rows, "parsed": parsed | ~shown[:, None]}

    def _generator(self, turn: int | None) -> LocalGenerator:
        """Another turn of the same step may have the same sample, which must not be judged with the same noise."""
        if turn not in self._generators:
            purpose = f"gan/judge/{'benchmark' if turn is None else turn}"
            keep = self._bench.config.keep_gathered
            self._generators[turn] = generator_in_stage(
                self._bench, self._reader, purpose, self._writing, in_step=turn is not None, keep_gathered=keep
            )
        return self._generators[turn]

    def loss(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        given = (batch[name].flatten(0, 1) for name in ("pair", "is_pair", "judged", "is_judged"))
        found = completion_log_probs(network, *given, temperature=self._config.temperature)
        log_probs = _by_order(found.log_probs)
        return _policy_terms(batch, torch.where(batch["is_judged"], log_probs, 0.0).sum(2))

    def count(self, batch: Batch) -> Tensor:
        return batch["is_judged"].sum((1, 2)) * batch["is_shown"]


def _policy_terms(batch: Batch, log_probs: Tensor) -> dict[str, Tensor]:
    """What is learned, from log-probabilities [rows, 2], and whether all rewards were equal, so that nothing is; that
    is only logged."""
    values = -(batch["judge_advantage"] * log_probs).sum(1)
    return {
        VERDICT: torch.where(batch["is_shown"], values, 0.0),
        "no_variance": batch["judge_no_variance"].to(values.dtype),
    }


def padded(name: str, tokens: Sequence[Sequence[int]], pad: int, device: torch.device) -> dict[str, Tensor]:
    """Tokens as rows that are padded in front, and `is_NAME`, true where there is one."""
    rows, mask = left_pad(tokens, pad, device)
    return {name: rows, f"is_{name}": torch.ones_like(rows, dtype=torch.bool) if mask is None else mask}


def _by_order(values: Tensor) -> Tensor:
    """[rows x 2, ...] as [rows, 2, ...]."""
    return values.unflatten(0, (-1, len(ORDERS)))


def _pair_rows(pairs: Sequence[Pair], pad: int, device: torch.device) -> dict[str, Tensor]:
    """What the judge reads [rows, 2, width], and whether there was enough to judge."""
    read = padded("pair", [tokens for pair in pairs for tokens in pair.orders], pad, device)
    flags = {
        "is_shown": [pair.is_shown for pair in pairs],
        "judge_prompt_cut": [pair.is_prompt_cut for pair in pairs],
    }
    return {
        **{name: _by_order(values) for name, values in read.items()},
        **{name: torch.tensor(values, device=device) for name, values in flags.items()},
    }
