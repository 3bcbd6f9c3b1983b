"""What comes out of a comparison: who wins each pair, how often, whether that can be chance, and how the texts differ.

A pair is won by mean log-odds over both orders, so what a judge likes about the first place cancels. A judge that
writes its answer has no odds: a text wins if the judge names it in both orders. Anything else is a tie. Win rate,
interval and p-value are of the pairs that have a winner. They are shown as tables, and as one HTML page without scripts
or other files, made from the template page.html.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from samestep import Trained
from samestep.core.console import PlainConsole
from samestep.core.html_template import fill_template
from samestep.core.records import Json
from samestep.recipes.gan.comparison_judges import Answer, ComparisonJudge
from samestep.recipes.gan.evaluation import binomial_test, split_words, win_rate

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
    for line in _heading(results):
        console.print(Text(line))
    for asked in results["questions"]:
        console.print(_question_table(asked))
        console.print(Text(about_answers(asked), style="dim"))
    console.print(_texts_table(results))


def _heading(results: Mapping[str, Json]) -> list[str]:
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
    for group, found in _rows_of(asked):
        table.add_row(Text(group), *_tally_texts(found))
    return table


def _rows_of(asked: Mapping[str, Json]) -> list[tuple[str, Mapping[str, Json]]]:
    """The tallies to show: that of all pairs, and those of the groups if there are several."""
    groups = list(asked["groups"].items())
    return [("all", asked["all"]), *(groups if len(groups) > 1 else [])]


def _tally_texts(found: Mapping[str, Json]) -> list[str]:
    """Wins of A and B, ties, rate, interval and p-value, for people."""
    counts = [f"{found[name]}" for name in ("a", "b", "ties")]
    if found["rate"] is None:
        return [*counts, "", "", ""]
    p_value = f"{found['p_value']:.3f}" if found["p_value"] >= 0.001 else f"{found['p_value']:.1e}"
    return [*counts, f"{found['rate']:.3f}", f"{found['low']:.3f} - {found['high']:.3f}", p_value]


_METRICS = ("texts", "dist-1", "dist-2", "dist-3", "Self-BLEU", "words", "at limit")


def _metric_rows(results: Mapping[str, Json]) -> list[list[str]]:
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
    for name in _METRICS:
        table.add_column(name, justify="left" if name == "texts" else "right", no_wrap=True)
    for row in _metric_rows(results):
        table.add_row(*row)
    return table


TEMPLATE = Path(__file__).with_name("page.html")
GROUPS, PAIRS = 20, 40
"""Groups and pairs of texts that are shown at most."""
WIDTH, ROW = 880, 26
_RATES, _COUNTS, _NUMBERS = (150, 430), (460, 700), 715
"""Where the rates and the counts are drawn, from left to right, and where their numbers begin."""
_BINS, _PANEL = 24, 84


def comparison_page(results: Mapping[str, Json]) -> str:
    """The page."""
    verdict_scores = [
        [score for pair in results["pairs"] if (score := pair["verdicts"][number]["score"]) is not None]
        for number in range(len(results["questions"]))
    ]
    parts = {
        "TITLE": escape(f"{results['a']['name']} against {results['b']['name']}"),
        "NOTES": "\n".join(f'<p class="note">{escape(line)}</p>' for line in _heading(results)),
        "QUESTIONS": "\n".join(map(_question, results["questions"], verdict_scores)),
        "METRICS": _metrics(results),
        "LENGTHS": _lengths(results),
        "PAIRS": _pairs(results),
    }
    return fill_template(TEMPLATE, parts)


def _question(asked: Mapping[str, Json], scores: Sequence[float]) -> str:
    note = f"{asked['judge']}, {asked['mode']}; {about_answers(asked)}"
    head = f'<h2>{escape(asked["criterion"])}</h2><p class="note">{escape(note)}</p>'
    return f'<section class="card">{head}{_wins(asked)}{_scores(scores) if scores else ""}</section>'


def _wins(asked: Mapping[str, Json]) -> str:
    """Of all pairs and of each group: A's win rate with its interval, and the share of wins and ties."""
    (total, *groups), parts = _rows_of(asked), []
    shown = sorted(groups, key=lambda row: -sum(row[1][name] for name in ("a", "b", "ties")))[:GROUPS]
    rows = [total, *sorted(shown)]
    bottom = 40 + ROW * len(rows)
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = _at(_RATES, share)
        parts.append(_line(x, 34, x, bottom, "even" if share == 0.5 else "rule"))
        parts.append(_text(x, bottom + 16, f"{share:g}", "middle", "soft"))
    parts.append(_text(_RATES[0], 18, "A's win rate, 95% interval"))
    parts.append(_text(_COUNTS[0], 18, "pairs"))
    parts.append(_text(_NUMBERS, 18, "A : B (ties), p-value"))
    for number, (group, found) in enumerate(rows):
        parts.append(_win_row(52 + ROW * number, group, found))
    if len(shown) < len(groups):
        more = f"and {len(groups) - len(shown)} smaller groups"
        parts.append(_text(0, bottom + 16, more, "start", "soft"))
    return _svg(bottom + 24, parts)


def _win_row(y: float, group: str, found: Mapping[str, Json]) -> str:
    a, b, ties, _, _, p_value = _tally_texts(found)
    parts = [_text(0, y + 4, group if len(group) < 24 else group[:22] + "…")]
    if found["rate"] is not None:
        parts.append(_line(_at(_RATES, found["low"]), y, _at(_RATES, found["high"]), y, "range"))
        parts.append(f'<circle cx="{_at(_RATES, found["rate"]):.1f}" cy="{y}" r="4.5" class="dot"/>')
    total, start = found["a"] + found["b"] + found["ties"], 0
    for name, kind in (("a", "a"), ("ties", "tie"), ("b", "b")):
        left, right = (_at(_COUNTS, count / total) for count in (start, start + found[name]))
        if right > left:
            parts.append(_box(left, y - 8, right - left, 16, kind, f"{found[name]} of {total}"))
        start += found[name]
    decided = f", p {p_value}" if p_value else ""
    parts.append(_text(_NUMBERS, y + 4, f"{a} : {b} ({ties}){decided}"))
    return "".join(parts)


def _scores(scores: Sequence[float]) -> str:
    """How clear the verdicts are: mean log-odds of A over B, by pair."""
    limit = max(1e-9, max(map(abs, scores)))
    counts = Counter(min(_BINS - 1, int(_BINS * (score + limit) / (2 * limit))) for score in scores)
    span = (_RATES[0], _COUNTS[1])
    parts = [_text(span[0], 14, "log-odds of A over B, by pair")]
    parts += _bars(counts, span, 22, [("b" if 2 * place < _BINS else "a") for place in range(_BINS)])
    for share, value in ((0.0, -limit), (0.5, 0.0), (1.0, limit)):
        parts.append(_text(_at(span, share), 22 + _PANEL + 16, f"{value:.3g}", "middle", "soft"))
    return _svg(22 + _PANEL + 24, parts)


def _lengths(results: Mapping[str, Json]) -> str:
    """How long the texts are, in words: those of A, of B and of people."""
    kinds = [kind for kind in ("a", "b", "human") if kind in results["texts"]]
    words = {kind: [len(split_words(pair[kind])) for pair in results["pairs"]] for kind in kinds}
    longest = max(1, *(max(lengths) for lengths in words.values()))
    step = max(1, -(-(longest + 1) // _BINS))
    span, height = (_RATES[0], _COUNTS[1]), _PANEL + 12
    parts = [_text(span[0], 14, "length in words")]
    for number, (kind, lengths) in enumerate(words.items()):
        top = 22 + height * number
        parts.append(_text(0, top + _PANEL - 4, {"a": "A", "b": "B"}.get(kind, kind)))
        parts += _bars(Counter(length // step for length in lengths), span, top, [kind] * _BINS)
    bottom = 22 + height * len(words)
    for share in (0, 0.5, 1):
        parts.append(_text(_at(span, share), bottom + 6, f"{share * step * _BINS:g}", "middle", "soft"))
    return _svg(bottom + 14, parts)


def _bars(counts: Mapping[int, int], span: tuple[int, int], top: float, kinds: Sequence[str]) -> list[str]:
    """A histogram of `_BINS` bins, as high as a panel, with a line under it."""
    wide, most = (span[1] - span[0]) / _BINS, max(counts.values())
    parts = [_line(span[0], top + _PANEL, span[1], top + _PANEL, "rule")]
    for place, count in sorted(counts.items()):
        high = (_PANEL - 4) * count / most
        parts.append(_box(span[0] + wide * place, top + _PANEL - high, wide - 1, high, kinds[place], f"{count}"))
    return parts


def _metrics(results: Mapping[str, Json]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in _METRICS)
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in _metric_rows(results))
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _pairs(results: Mapping[str, Json]) -> str:
    """The first pairs, with who won each question."""
    kinds = {"a": "A", "b": "B", "human": "a person"} if "b" in results["texts"] else {"a": "A", "b": "B, a person"}
    parts = []
    for pair in results["pairs"][:PAIRS]:
        won = ", ".join({"a": "A", "b": "B", "tie": "tie"}[verdict["winner"]] for verdict in pair["verdicts"])
        texts = "".join(f"<div><b>{name}</b>{escape(pair[kind])}</div>" for kind, name in kinds.items())
        prompt = escape(" ".join(pair["prompt"].split()))
        parts.append(f'<details><summary>{won}: {prompt}</summary><div class="texts">{texts}</div></details>')
    if len(results["pairs"]) > PAIRS:
        parts.append(f'<p class="note">The first {PAIRS} of {len(results["pairs"])}; --out FILE.json has all.</p>')
    return "\n".join(parts)


def _at(span: tuple[int, int], share: float) -> float:
    return span[0] + (span[1] - span[0]) * share


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" role="img">{"".join(parts)}</svg>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, kind: str, tooltip: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} class="{kind}"><title>{escape(tooltip)}</title></rect>'
