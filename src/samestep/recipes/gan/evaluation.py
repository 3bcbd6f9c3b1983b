"""The benchmark: a fixed set of held-out records on which generator and judge are measured during training; and the
metrics about texts and wins, pure functions of plain values, that comparisons of runs have, too.

Every time, the generator completes the same prompts with the same noise, and the judge compares each completion with
what a person wrote, in both orders. Beside the generator stands its baseline: what it wrote before its first update
against the judge (so after maximum likelihood, where there was such a stage). Those texts are part of the state, and
the judge of the time looks at them again, since a judge that has learned is harder to pass.

All ranks share the records. Texts and answers are then gathered, and every rank computes the same metrics of the whole
set. An answer of the judge is right, wrong (the generator wins), a tie (half of each), or cannot be read: accuracy +
win_rate + failures = 1.
"""

import logging
import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, pstdev
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from samestep import (
    Batch,
    Bench,
    GenerationConfig,
    LanguageModel,
    Learner,
    Tick,
    UserError,
    evaluate,
    free,
    gather_rows,
    samples,
)
from samestep.core.config.bounds import Bounds, CountOrZero
from samestep.core.config.checked import CheckedConfig
from samestep.core.pages.tables import Table
from samestep.kit.generation import generator_in_stage
from samestep.recipes.gan.data import Record, TextRows, Texts, count_repeated, groups_of, load_pairs
from samestep.recipes.gan.judges import ORDERS
from samestep.recipes.gan.players import HumanTexts, count_nats, human_nats

logger = logging.getLogger(__name__)
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class BenchmarkConfig(CheckedConfig):
    """What generator and judge are measured on during training, each time that the stage validates."""

    size: CountOrZero = 64
    """Records, spread evenly over those kept for validation; 0: no benchmark."""
    collapse_factor: Annotated[float, Bounds(least=1)] = free(1.5)
    """Warn when a token of the human texts costs the generator more nats than its baseline, by this factor."""
    pairs: str | None = None
    """A file of records with one more column, `generated`: what some model wrote for the same prompts. The judge is
    measured on these texts too, which stay the same while its opponent changes; null: none."""


Words = Sequence[str]
MetricValues = dict[str, float]
Judged = Callable[[nn.Module, Sequence[Record], Sequence[str], Tensor], Sequence[Sequence[float | None]]]
"""What the judge makes of texts beside those of people, in both orders: see `Rollouts.right`."""


def split_words(text: str) -> list[str]:
    """The words and punctuation marks of a text, in small letters."""
    return _WORD.findall(text.lower())


def distinct_n(texts: Iterable[Words], n: int) -> float:
    """Distinct-n: the share of different n-grams among all n-grams of the texts; 0 if there are none."""
    counts = Counter(ngram for words in texts for ngram in _ngrams(words, n))
    return len(counts) / counts.total() if counts else 0.0


def self_bleu(texts: Sequence[Words], max_n: int = 4, epsilon: float = 0.1) -> float:
    """Self-BLEU: the mean BLEU of each text with all others as its references; 1 if all are equal.

    As is usual for single sentences, no match at a length of n-grams counts as `epsilon` matches, and lengths that a
    text is too short for do not count.
    """
    if len(texts) < 2:
        raise UserError(f"Self-BLEU compares texts with each other: give at least two, not {len(texts)}.")
    orders = [_OtherCounts(texts, n) for n in range(1, max_n + 1)]
    lengths = sorted(map(len, texts))
    return fmean(_bleu(number, len(words), orders, lengths, epsilon) for number, words in enumerate(texts))


def text_metrics(texts: Sequence[str], whole: Sequence[str] | None = None) -> MetricValues:
    """How varied and how long texts are; `empty` is the share of those without a word. `whole` are the texts before
    they were cut, whose lengths count."""
    words = [split_words(text) for text in texts]
    lengths = [len(split_words(text)) for text in (texts if whole is None else whole)]
    return {
        **{f"distinct_{n}": distinct_n(words, n) for n in (1, 2, 3)},
        **({"self_bleu": self_bleu(words)} if len(words) > 1 else {}),
        "words": fmean(lengths),
        "words_std": pstdev(lengths),
        "empty": sum(not found for found in words) / len(words),
    }


@dataclass(frozen=True)
class WinRate:
    """A share of wins, and the interval that it lies in with the given confidence."""

    rate: float
    low: float
    high: float


def win_rate(wins: float, games: int, confidence: float = 0.95) -> WinRate:
    """The share of wins with its Wilson interval, which holds for few games and for shares near 0 and 1. A game may be
    half won."""
    _check_counts(wins, games)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate, z2 = wins / games, z * z
    middle = (rate + z2 / (2 * games)) / (1 + z2 / games)
    half = z * math.sqrt(rate * (1 - rate) / games + z2 / (4 * games * games)) / (1 + z2 / games)
    # The ends are exact where rounding would leave 1e-17 of them.
    return WinRate(rate, 0.0 if wins == 0 else middle - half, 1.0 if wins == games else middle + half)


def binomial_test(wins: int, games: int, chance: float = 0.5) -> float:
    """The exact two-sided p-value of so many wins if each game is won with probability `chance`: the probability of
    all outcomes that are no likelier than this one."""
    _check_counts(wins, games)
    if not 0 < chance < 1:
        raise UserError(f"The chance to win must be between 0 and 1, not {chance}.")
    logs = [_log_probability(k, games, chance) for k in range(games + 1)]
    likely = logs[wins] + 1e-7  # outcomes that are equally likely differ by rounding
    return min(1.0, math.fsum(math.exp(log) for log in logs if log <= likely))


def mean_by_group(values: Sequence[float], groups: Sequence[str]) -> MetricValues:
    """The mean of the values of each group, in alphabetical order."""
    if len(values) != len(groups):
        raise UserError(f"Give each value one group; there are {len(values)} values and {len(groups)} groups.")
    by_group: dict[str, list[float]] = {}
    for value, group in zip(values, groups):
        by_group.setdefault(group, []).append(value)
    return {group: fmean(by_group[group]) for group in sorted(by_group)}


def _ngrams(words: Words, n: int) -> list[tuple[str, ...]]:
    return [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]


class _OtherCounts:
    """How often n-grams of one length occur in each text, and how often at most in any other text.

    The two largest counts of an n-gram are enough for that, so the cost does not grow with pairs of texts.
    """

    def __init__(self, texts: Sequence[Words], n: int) -> None:
        self._counts = [Counter(_ngrams(words, n)) for words in texts]
        self._first: dict[tuple[str, ...], tuple[int, int]] = {}
        self._second: Counter[tuple[str, ...]] = Counter()
        for number, counts in enumerate(self._counts):
            for ngram, count in counts.items():
                most, owner = self._first.get(ngram, (0, -1))
                self._second[ngram] = max(self._second[ngram], min(count, most))
                self._first[ngram] = (count, number) if count > most else (most, owner)

    def matches(self, number: int) -> tuple[int, int]:
        """Of the n-grams of a text, how many others have as often, and how many there are."""
        matched = 0
        for ngram, count in self._counts[number].items():
            most, owner = self._first[ngram]
            matched += min(count, self._second[ngram] if owner == number else most)
        return matched, self._counts[number].total()


def _bleu(number: int, length: int, orders: Sequence[_OtherCounts], lengths: Sequence[int], epsilon: float) -> float:
    """BLEU of one text with all others as its references; `lengths` are those of all texts, sorted."""
    if length == 0:
        return 0.0
    found = [order.matches(number) for order in orders[:length]]
    place = bisect_left(lengths, length)
    neighbours = [*lengths[max(0, place - 1) : place], *lengths[place + 1 : place + 2]]
    closest = min(neighbours, key=lambda other: (abs(other - length), other))
    precision = fmean(math.log((matched or epsilon) / total) for matched, total in found)
    return math.exp(precision + min(0.0, 1 - closest / length))


def _log_probability(k: int, n: int, chance: float) -> float:
    choices = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return choices + k * math.log(chance) + (n - k) * math.log1p(-chance)


def _check_counts(wins: float, games: int) -> None:
    if not 0 <= wins <= games or games < 1:
        raise UserError(f"Wins must be between 0 and the number of games, at least 1; {wins} of {games} is wrong.")


@dataclass(frozen=True)
class Verdicts:
    """What the judge answered about the texts of all records."""

    right: Sequence[tuple[float | None, ...]]
    """By record, for each of ORDERS: whether the answer was right (1, 0, or 0.5 for a tie); None: it could not be
    read."""

    @classmethod
    def of(cls, right: Tensor) -> "Verdicts":
        """From numbers [records, orders]; NaN: the answer could not be read."""
        return cls([tuple(None if math.isnan(value) else value for value in row) for row in right.tolist()])

    def win_rate(self) -> WinRate:
        """How often the judge took the generated text for the human one.

        The two answers about a record are no independent games: the interval is that of one game a record, of which
        each answer is a half.
        """
        return win_rate(sum(1 - value for value in self._readable()) / 2, len(self.right))

    @property
    def failures(self) -> float:
        """The share of answers that could not be read."""
        asked = len(ORDERS) * len(self.right)
        return (asked - len(self._readable())) / asked

    def accuracies(self, groups: Sequence[str]) -> MetricValues:
        """How often the judge is right, of all answers: overall, by order, and by group."""
        first, second = ([value or 0.0 for value in column] for column in zip(*self.right))
        return {
            "accuracy": fmean([*first, *second]),
            "accuracy_human_first": fmean(first),
            "accuracy_human_second": fmean(second),
            **_named("accuracy/", mean_by_group([*first, *second], [*groups, *groups])),
        }

    def position_bias(self) -> float | None:
        """How much more often the judge named the first text than half of the time; an answer that cannot be read names
        neither. None where no answer could be read."""
        more = [[0.0 if value is None else value - 0.5 for value in row] for row in self.right]
        return fmean((first - second) / 2 for first, second in more) if self._readable() else None

    def _readable(self) -> list[float]:
        return [value for row in self.right for value in row if value is not None]


class Baseline:
    """What the generator wrote for the benchmark before its first update; checkpoint state."""

    def __init__(self, records: int, max_new_tokens: int) -> None:
        self._tokens = torch.zeros(records, max_new_tokens, dtype=torch.int64)
        self._lengths = torch.zeros(records, dtype=torch.int64)
        self.nats: float | None = None
        """Per token of the human texts; None: there is no baseline yet."""

    def keep(self, written: Mapping[str, Tensor], nats: float) -> None:
        self._tokens.copy_(written["tokens"])
        self._lengths.copy_(written["lengths"])
        self.nats = nats

    def texts(self, player: LanguageModel) -> list[str]:
        return _decoded({"tokens": self._tokens, "lengths": self._lengths}, player)

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": self._tokens, "lengths": self._lengths, "nats": self.nats}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["nats"] is not None:
            self.keep(state, state["nats"])


class Benchmark:
    """Measures a generator and a judge on the same records again and again."""

    def __init__(
        self, bench: Bench, texts: Texts, writer: LanguageModel, generator: Learner, judge: Learner, judged: Judged
    ) -> None:
        self._bench, self._config = bench, bench.config.benchmark
        self._rows, self._writer = _chosen_rows(bench, texts.validation, self._config.size), writer
        self._repeated = count_repeated(self._rows.records, texts.train.records)
        self._generator, self._judge, self._judged = generator, judge, judged
        writing: GenerationConfig = bench.config.writing
        humans = HumanTexts(self._rows, writer, generator.module, writing.max_new_tokens)
        self._feed = bench.evaluation_feed(humans, count=count_nats, pad=humans.pad)
        keep = bench.config.keep_gathered
        self._write = generator_in_stage(bench, writer, "gan/benchmark", writing, in_step=False, keep_gathered=keep)
        self.baseline = Baseline(len(self._rows), writing.max_new_tokens)
        # Cut as completions are: longer texts have fewer different words by themselves.
        cut = [writer.encode(record.human)[: writing.max_new_tokens] for record in self._rows.records]
        self._human_metrics = text_metrics([writer.decode(tokens) for tokens in cut])
        self._baseline_metrics: MetricValues = {}
        self._is_collapsed = False

    def begin(self) -> None:
        """Make the baseline, where there is none yet: call it before the generator learns."""
        if self.baseline.nats is None:
            nats = evaluate(self._generator, self._feed, human_nats)["nats"]
            self.baseline.keep(self._written(), nats)

    def measure(self, tick: Tick) -> MetricValues:
        """All metrics, equal on all ranks; also logged as a table."""
        self.begin()  # for a validation before the first step
        nats = evaluate(self._generator, self._feed, human_nats, tick.step)["nats"]
        texts, before = _decoded(self._written(), self._writer), self.baseline.texts(self._writer)
        now, then = (Verdicts.of(right) for right in self._verdicts(texts, before).unbind(1))
        self._baseline_metrics = self._baseline_metrics or text_metrics(before)
        bias = now.position_bias()
        found = {
            **_wins(now),
            **now.accuracies([record.group for record in self._rows.records]),
            **({} if bias is None else {"position_bias": bias}),
            **self._likelihood(nats, tick.step + 1),
            "prompts_in_training": float(self._repeated),
            **text_metrics(texts),
            **_named("baseline_", {**_wins(then), **self._baseline_metrics}),
            **_named("human_", self._human_metrics),
        }
        self._bench.log_samples("benchmark", benchmark_table(found, len(texts)))
        self._bench.log_samples("completions", *self._pairs(texts, now))
        return {f"benchmark/{name}": value for name, value in found.items()}

    def _pairs(self, texts: Sequence[str], verdicts: Verdicts) -> list[samples.Pair]:
        """What the generator wrote beside what people did, and what the judge said."""
        names = {1.0: "human", 0.0: "generator", 0.5: samples.TIE}
        found = list(zip(self._rows.records, texts, verdicts.right, strict=True))[: self._bench.sample_count]
        return [
            samples.Pair(
                {"human": record.human, "generator": text},
                record.prompt,
                [None if value is None else names[value] for value in right],
            )
            for record, text, right in found
        ]

    def _written(self) -> dict[str, Tensor]:
        """What the generator writes for all records now: `tokens` [records, max_new_tokens] and `lengths`."""

        def write(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
            prompts = [
                row[real].tolist() for row, real in zip(batch["prompt"].cpu(), batch["is_prompt"].cpu(), strict=True)
            ]
            written = self._write(network, prompts, batch["ids"], step=0)  # always: the noise is the same every time
            return {"tokens": written.tokens, "lengths": written.lengths}

        return gather_rows(self._generator, self._feed, write)

    def _verdicts(self, *versions: Sequence[str]) -> Tensor:
        """Whether the judge is right [records, versions, orders] about some versions of all texts; NaN: None."""

        def judge(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
            records, indices = self._rows.of_batch(batch["ids"]), batch["ids"][:, 1].tolist()
            found = [self._judged(network, records, [texts[i] for i in indices], batch["ids"]) for texts in versions]
            return {"right": torch.stack([_as_numbers(right, batch["ids"].device) for right in found], 1)}

        return gather_rows(self._judge, self._feed, judge)["right"]

    def _likelihood(self, nats: float, step: int) -> MetricValues:
        """How likely the generator finds the human texts, with a warning where it has forgotten how people write."""
        before, factor = self.baseline.nats, self._config.collapse_factor
        assert before is not None, "begin was called"
        collapsed = not nats <= factor * before  # also where it is NaN
        if collapsed and not self._is_collapsed and self._bench.world.is_main:
            logger.warning(
                "the generator may have collapsed: after step %d a token of the human texts costs it %.4g nats, and "
                "%.4g before its first update (benchmark.collapse_factor=%g); lower learning_rate, raise "
                "objective.kl_coef, or go on from an earlier checkpoint",
                *(step, nats, before, factor),
            )
        self._is_collapsed = collapsed
        return {"human_nats": nats, "baseline_human_nats": before, "collapsed": float(collapsed)}


class FixedPairs:
    """A file of human and generated texts, on which the judge is measured again and again. Its accuracy on the
    benchmark falls when the generator improves too; on these pairs it says what the judge itself has learned."""

    def __init__(self, bench: Bench, path: str, judge: Learner, judged: Judged) -> None:
        self._rows, self._generated = load_pairs(bench.config.data, path)
        self._judge, self._judged = judge, judged
        self._feed = bench.evaluation_feed(self._rows, collate=groups_of)

    def measure(self) -> MetricValues:
        """Metrics of the judge, equal on all ranks."""

        def judge(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
            texts = [self._generated[index] for index in batch["ids"][:, 1].tolist()]
            right = self._judged(network, self._rows.of_batch(batch["ids"]), texts, batch["ids"])
            return {"right": _as_numbers(right, batch["ids"].device)}

        verdicts = Verdicts.of(gather_rows(self._judge, self._feed, judge)["right"])
        groups = [record.group for record in self._rows.records]
        found = {**verdicts.accuracies(groups), "failures": verdicts.failures}
        bias = verdicts.position_bias()
        return _named("pairs/", found if bias is None else {**found, "position_bias": bias})


def benchmark_table(metrics: Mapping[str, float], records: int) -> str:
    """The metrics as text: the generator beside its baseline and people, then the judge."""
    names = ("win_rate", "distinct_1", "distinct_2", "self_bleu", "words", "words_std", "empty", "human_nats")
    rows = [
        (name, *(_shown(metrics, f"{who}{name}") for who in ("", "baseline_", "human_")))
        for name in names
        if name in metrics
    ]
    of_judge = [name for name in metrics if name.startswith("accuracy") or name in ("failures", "position_bias")]
    tables = (
        Table(("", "generator", "baseline", "people"), rows, _about_records(metrics, records)),
        Table(("judge", ""), [(name, f"{metrics[name]:.4g}") for name in of_judge]),
    )
    return "\n\n".join(table.text() for table in tables)


def _about_records(metrics: Mapping[str, float], records: int) -> str:
    repeated = int(metrics["prompts_in_training"])
    known = f", {repeated} of them with a prompt that occurs in training with another human text" if repeated else ""
    return f"{records} records{known}"


def _shown(metrics: Mapping[str, float], name: str) -> str:
    if name not in metrics:
        return ""
    interval = f" ({metrics[f'{name}_low']:.3f} to {metrics[f'{name}_high']:.3f})" if f"{name}_low" in metrics else ""
    return f"{metrics[name]:.4g}{interval}"


def _named(prefix: str, metrics: Mapping[str, float]) -> MetricValues:
    return {f"{prefix}{name}": value for name, value in metrics.items()}


def _wins(verdicts: Verdicts) -> MetricValues:
    found = verdicts.win_rate()
    interval = {"win_rate_low": found.low, "win_rate_high": found.high}
    return {"win_rate": found.rate, **interval, "failures": verdicts.failures}


def _as_numbers(right: Sequence[Sequence[float | None]], device: torch.device) -> Tensor:
    """What the judge answered, as a tensor; NaN: it could not be read."""
    numbers = [[math.nan if value is None else value for value in row] for row in right]
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def _decoded(written: Mapping[str, Tensor], player: LanguageModel) -> list[str]:
    rows = zip(written["tokens"].tolist(), written["lengths"].tolist(), strict=True)
    return [player.decode(tokens[:length]) for tokens, length in rows]


def _chosen_rows(bench: Bench, rows: TextRows, size: int) -> TextRows:
    """So many rows, spread evenly: a file may be sorted by group."""
    if len(rows) < size:
        bench.screen.print(f"benchmark.size={size}: the benchmark has all {len(rows)} records kept for validation")
    size = min(size, len(rows))
    chosen = [rows.records[number * len(rows) // size] for number in range(size)]
    return TextRows(chosen, rows.groups, rows.origins())
