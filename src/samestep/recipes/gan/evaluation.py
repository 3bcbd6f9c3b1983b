"""The benchmark: a fixed set of held-out records on which generator and judge are measured during training.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, Protocol

import torch
from torch import Tensor, nn

from samestep import (
    Batch,
    Bench,
    GenerationConfig,
    Learner,
    Tick,
    evaluate,
    free,
    gather_rows,
)
from samestep.core.config.bounds import Bounds, CountOrZero
from samestep.core.config.checked import CheckedConfig
from samestep.recipes.gan.data import Record, TextRows
from samestep.recipes.gan.human_texts import HumanTexts, count_nats, human_nats
from samestep.recipes.gan.players import Player, generator_of
from samestep.recipes.gan.text_metrics import MetricValues, WinRate, mean_by_group, text_metrics, win_rate

logger = logging.getLogger(__name__)
ORDERS = (True, False)
"""Whether the human text comes first, in the order in which answers are kept."""


@dataclass(frozen=True)
class BenchmarkConfig(CheckedConfig):
    """What generator and judge are measured on during training, each time that the stage validates."""

    size: CountOrZero = 64
    """Records, spread evenly over those kept for validation; 0: no benchmark."""
    collapse_factor: Annotated[float, Bounds(least=1)] = free(1.5)
    """Warn when a token of the human texts costs the generator more nats than its baseline, by this factor."""


class Judged(Protocol):
    """What the judge makes of texts beside those of people."""

    def __call__(
        self,
        network: nn.Module,
        records: Sequence[Record],
        texts: Sequence[str],
        human_first: Sequence[bool],
        ids: Tensor,
    ) -> Sequence[float | None]:
        """Whether it is right, by row: 1, 0, or 0.5 for a tie; None where the answer cannot be read. A text that is too
        short to judge counts as caught. All ranks call it equally often, with at least one row; `ids` [rows, 2] key
        noise."""


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
        """The share of the answer 1 minus a half; None where no answer could be read."""
        ones = [
            value if human_first else 1 - value
            for row in self.right
            for value, human_first in zip(row, ORDERS)
            if value is not None
        ]
        return fmean(ones) - 0.5 if ones else None

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
        """Take over what was written now."""
        self._tokens.copy_(written["tokens"])
        self._lengths.copy_(written["lengths"])
        self.nats = nats

    def texts(self, player: Player) -> list[str]:
        """Its texts, in the order of the records."""
        return _decoded({"tokens": self._tokens, "lengths": self._lengths}, player)

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return {"tokens": self._tokens, "lengths": self._lengths, "nats": self.nats}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with a saved one."""
        if state["nats"] is not None:
            self.keep(state, state["nats"])


class Benchmark:
    """Measures a generator and a judge on the same records again and again."""

    def __init__(
        self, bench: Bench, rows: TextRows, writer: Player, generator: Learner, judge: Learner, judged: Judged
    ) -> None:
        """`rows` are those kept for validation, of which the benchmark has some."""
        self._bench, self._config = bench, bench.config.benchmark
        self._rows, self._writer = _chosen_rows(bench, rows, self._config.size), writer
        self._generator, self._judge, self._judged = generator, judge, judged
        writing: GenerationConfig = bench.config.writing
        humans = HumanTexts(self._rows, writer, generator.module, writing.max_new_tokens)
        self._feed = bench.evaluation_feed(humans, count=count_nats, pad=humans.pad)
        self._write = generator_of(bench, writer, "gan/benchmark", writing, in_step=False)
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
            **text_metrics(texts),
            **_named("baseline_", {**_wins(then), **self._baseline_metrics}),
            **_named("human_", self._human_metrics),
        }
        self._bench.log_text("benchmark", benchmark_table(found, len(texts)))
        return {f"benchmark/{name}": value for name, value in found.items()}

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
            right = [
                self._judged(network, records, [texts[i] for i in indices], [first] * len(records), batch["ids"])
                for texts in versions
                for first in ORDERS
            ]
            rows = [[math.nan if value is None else value for value in row] for row in zip(*right, strict=True)]
            found = torch.tensor(rows, dtype=torch.float64, device=batch["ids"].device)
            return {"right": found.view(len(records), len(versions), len(ORDERS))}

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


def benchmark_table(metrics: Mapping[str, float], records: int) -> str:
    """The metrics as text: the generator beside its baseline and people, then the judge."""
    names = ("win_rate", "distinct_1", "distinct_2", "self_bleu", "words", "words_std", "empty", "human_nats")
    lines = [f"{records} records", f"{'':<12}{'generator':>24}{'baseline':>24}{'people':>12}"]
    for name in (name for name in names if name in metrics):
        shown = [_shown(metrics, f"{who}{name}") for who in ("", "baseline_", "human_")]
        lines.append(f"{name:<12}{shown[0]:>24}{shown[1]:>24}{shown[2]:>12}")
    lines += ["", "judge"]
    of_judge = [name for name in metrics if name.startswith("accuracy") or name in ("failures", "position_bias")]
    return "\n".join(lines + [f"{name:<24}{metrics[name]:>12.4g}" for name in of_judge])


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


def _decoded(written: Mapping[str, Tensor], player: Player) -> list[str]:
    rows = zip(written["tokens"].tolist(), written["lengths"].tolist(), strict=True)
    return [player.decode(tokens[:length]) for tokens, length in rows]


def _chosen_rows(bench: Bench, rows: TextRows, size: int) -> TextRows:
    """So many rows, spread evenly: a file may be sorted by group."""
    if len(rows) < size:
        bench.screen.print(f"benchmark.size={size}: the benchmark has all {len(rows)} records kept for validation")
    size = min(size, len(rows))
    (origin,) = rows.origins()
    return TextRows([rows.records[number * len(rows) // size] for number in range(size)], rows.groups, origin)
