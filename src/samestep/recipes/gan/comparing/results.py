"""What comes out of a comparison: who wins each pair, how often, whether that can be chance, and how the texts differ.

A pair is won by mean log-odds over both orders, so what a judge likes about the first place cancels. A judge that
writes its answer has no odds: a text wins if the judge names it in both orders. Anything else is a tie. Win rate,
interval and p-value are of the pairs that have a winner.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from samestep import Trained
from samestep.core.console import PlainConsole
from samestep.core.records import Json
from samestep.recipes.gan.comparing.judges import Answer, ComparisonJudge
from samestep.recipes.gan.text_metrics import binomial_test, win_rate

Winner = Literal["a", "b", "tie"]
_ROUNDING = 1e-5
"""Log-odds that are closer to even than this are even."""


@dataclass(frozen=True)
class Verdict:
    """Who won a pair."""

    winner: Winner
    score: float | None = None
    """Mean log-odds of A over B, where the judge has odds."""
    answers: tuple[Answer, ...] = ()
    """With A first, then with B first; none where there was nothing to ask."""


def without_judge(a: str, b: str) -> Verdict | None:
    """The verdict where there is nothing to ask: equal texts tie, and an empty one loses. None: a judge is needed."""
    if a.strip() == b.strip():
        return Verdict("tie")
    if a.strip() and b.strip():
        return None
    return Verdict("a" if a.strip() else "b")


def decide(a_first: Answer, b_first: Answer) -> Verdict:
    """The verdict by the answers to a pair in both orders."""
    answers = (a_first, b_first)
    if a_first.log_odds is not None and b_first.log_odds is not None:
        score = (a_first.log_odds - b_first.log_odds) / 2
        return Verdict("tie" if abs(score) < _ROUNDING else "a" if score > 0 else "b", score, answers)
    named = (a_first.choice, b_first.choice)
    return Verdict("a" if named == (1, 2) else "b" if named == (2, 1) else "tie", None, answers)


def tally(verdicts: Sequence[Verdict]) -> dict[str, Json]:
    """How often each side won; the rate is that of A, with its 95% interval and the exact two-sided p-value."""
    wins = Counter(verdict.winner for verdict in verdicts)
    counts: dict[str, Json] = {"a": wins["a"], "b": wins["b"], "ties": wins["tie"]}
    decided = wins["a"] + wins["b"]
    if not decided:
        return {**counts, "rate": None, "low": None, "high": None, "p_value": None}
    rate = win_rate(wins["a"], decided)
    p_value = binomial_test(wins["a"], decided)
    return {**counts, "rate": rate.rate, "low": rate.low, "high": rate.high, "p_value": p_value}


def question_results(
    judge: ComparisonJudge, criterion: str, verdicts: Sequence[Verdict], groups: Sequence[str]
) -> dict[str, Json]:
    """Everything about one criterion and one judge."""
    asked = [verdict.answers for verdict in verdicts if verdict.answers]
    answers = [answer for pair in asked for answer in pair]
    named = [answer.choice for answer in answers if answer.choice is not None]
    by_group = {
        group: tally([verdict for verdict, own in zip(verdicts, groups, strict=True) if own == group])
        for group in sorted(set(groups))
    }
    return {
        "judge": judge.name,
        "mode": judge.mode,
        "criterion": criterion,
        "all": tally(verdicts),
        "groups": by_group,
        "pairs_asked": len(asked),
        "first_named": fmean(choice == 1 for choice in named) if named else None,
        "same_in_both_orders": fmean({one.choice, two.choice} == {1, 2} for one, two in asked) if asked else None,
        "unread": sum(answer.choice is None and answer.log_odds is None for answer in answers),
    }


def show_comparison(trained: Trained, results: Mapping[str, Json]) -> None:
    """Print the results as tables."""
    console = PlainConsole()
    for line in heading(results):
        console.print(Text(line))
    for asked in results["questions"]:
        console.print(_question_table(asked))
        console.print(Text(about_answers(asked), style="dim"))
    console.print(_texts_table(results))


def heading(results: Mapping[str, Json]) -> list[str]:
    """Who is compared on what."""
    records = results["records"]
    lines = [f"A: {results['a']['name']}", f"B: {results['b']['name']}", f"on {records['count']} {records['name']}"]
    return lines + [f"note: {note}" for note in results["notes"]]


def about_answers(asked: Mapping[str, Json]) -> str:
    """How far the answers can be relied on."""
    if not asked["pairs_asked"]:
        return "the judge was not asked: all texts are equal or empty"
    parts = [f"{asked['pairs_asked']} pairs asked in both orders"]
    if asked["first_named"] is not None:
        parts.append(f"{asked['first_named']:.0%} of answers name the first text")
    parts.append(f"{asked['same_in_both_orders']:.0%} of pairs get the same winner in both orders")
    if asked["unread"]:
        parts.append(f"{asked['unread']} answers could not be read")
    doubt = "; do not rely on this judge here" if asked["same_in_both_orders"] < 0.5 else ""
    return ", ".join(parts) + doubt


def _question_table(asked: Mapping[str, Json]) -> Table:
    title = Text(f"{asked['criterion']} ({asked['judge']}, {asked['mode']})")
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("group", "A wins", "B wins", "ties", "A's rate", "95% interval", "p-value"):
        table.add_column(name, justify="left" if name == "group" else "right")
    for group, found in rows_of(asked):
        table.add_row(Text(group), *tally_texts(found))
    return table


def rows_of(asked: Mapping[str, Json]) -> list[tuple[str, Mapping[str, Json]]]:
    """The tallies to show: that of all pairs, and those of the groups if there are several."""
    groups = list(asked["groups"].items())
    return [("all", asked["all"]), *(groups if len(groups) > 1 else [])]


def tally_texts(found: Mapping[str, Json]) -> list[str]:
    """Wins of A and B, ties, rate, interval and p-value, for people."""
    counts = [f"{found[name]}" for name in ("a", "b", "ties")]
    if found["rate"] is None:
        return [*counts, "", "", ""]
    p_value = f"{found['p_value']:.3f}" if found["p_value"] >= 0.001 else f"{found['p_value']:.1e}"
    return [*counts, f"{found['rate']:.3f}", f"{found['low']:.3f} - {found['high']:.3f}", p_value]


METRICS = ("texts", "dist-1", "dist-2", "dist-3", "Self-BLEU", "words", "at limit")
"""The columns of the table of texts."""


def metric_rows(results: Mapping[str, Json]) -> list[list[str]]:
    """The rows of the table of texts: those of A, of B and of people."""
    rows = []
    for name, found in results["texts"].items():
        bleu, cut = found.get("self_bleu"), found.get("at_the_limit")
        rows.append(
            [
                {"a": "A", "b": "B"}.get(name, name),
                *(f"{found[f'distinct_{n}']:.3f}" for n in (1, 2, 3)),
                "" if bleu is None else f"{bleu:.3f}",
                f"{found['words']:.1f} ± {found['words_std']:.1f}",
                "" if cut is None else f"{cut:.0%}",
            ]
        )
    return rows


def _texts_table(results: Mapping[str, Json]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in METRICS:
        table.add_column(name, justify="left" if name == "texts" else "right", no_wrap=True)
    for row in metric_rows(results):
        table.add_row(*row)
    return table
