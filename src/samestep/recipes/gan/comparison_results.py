"""What comes out of a comparison: who wins each pair, how often, whether that can be chance, and how the texts differ.

A pair is won by mean log-odds over both orders, so what a judge likes about the first place cancels. A judge that
writes its answer has no odds: a text wins if the judge names it in both orders. Anything else is a tie. Win rate,
interval and p-value are of the pairs that have a winner. They are shown as tables, and as one HTML page.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from rich.text import Text

from samestep import Trained
from samestep.core.console import PlainConsole
from samestep.core.json_files import Json
from samestep.core.pages.drawing import Scale, axis_across, bars, box, chip, dot, drawing, line, text
from samestep.core.pages.html import Html, element, note, page, section
from samestep.core.pages.tables import Table
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
    for heading in _heading(results):
        console.print(Text(heading))
    for asked in results["questions"]:
        console.print(_question_table(asked).drawn())
        console.print(Text(about_answers(asked), style="dim"))
    console.print(_texts_table(results).drawn())


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
    columns = ("group", "A wins", "B wins", "ties", "A's rate", "95% interval", "p-value")
    rows = [[group, *_tally_texts(found)] for group, found in _rows_of(asked)]
    return Table(columns, rows, f"{asked['criterion']} ({asked['judge']}, {asked['mode']})")


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


def _texts_table(results: Mapping[str, Json]) -> Table:
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
    return Table(("texts", "dist-1", "dist-2", "dist-3", "Self-BLEU", "words", "at limit"), rows)


GROUPS, PAIRS = 20, 40
"""Groups and pairs of texts that are shown at most."""
WIDTH, ROW = 880, 26
_RATES, _COUNTS, _NUMBERS = Scale(0, 1, 150, 430), Scale(0, 1, 460, 700), 715
"""Where the rates and the counts are drawn, from left to right, and where their numbers begin."""
_BINS, _PANEL = 24, 84
_COLOURS = {"a": "blue", "b": "orange", "ties": "grey", "human": "green"}
_ABOUT_TEXTS = (
    "Distinct-n: share of different n-grams. Self-BLEU: how much the texts are alike. Human texts are cut to the "
    "generator's limit for these, not for their length."
)


def comparison_page(results: Mapping[str, Json]) -> str:
    """The page."""
    verdict_scores = [
        [score for pair in results["pairs"] if (score := pair["verdicts"][number]["score"]) is not None]
        for number in range(len(results["questions"]))
    ]
    legend = [element("span", chip(_COLOURS[kind]), name) for kind, name in (("a", "A"), ("b", "B"), ("ties", "tie"))]
    return page(
        f"{results['a']['name']} against {results['b']['name']}",
        *map(note, _heading(results)),
        element("p", *legend, kind="legend"),
        *map(_question, results["questions"], verdict_scores),
        section("The texts", note(_ABOUT_TEXTS), _texts_table(results).html(), _lengths(results)),
        section("Texts side by side", *_pairs(results)),
    )


def _question(asked: Mapping[str, Json], scores: Sequence[float]) -> Html:
    about = note(f"{asked['judge']}, {asked['mode']}; {about_answers(asked)}")
    return section(asked["criterion"], about, _wins(asked), *([_scores(scores)] if scores else []))


def _wins(asked: Mapping[str, Json]) -> Html:
    """Of all pairs and of each group: A's win rate with its interval, and the share of wins and ties."""
    total, *groups = _rows_of(asked)
    shown = sorted(groups, key=lambda row: -sum(row[1][name] for name in ("a", "b", "ties")))[:GROUPS]
    rows = [total, *sorted(shown)]
    bottom = 40 + ROW * len(rows)
    shares = {share: f"{share:g}" for share in (0, 0.25, 0.5, 0.75, 1)}
    parts = axis_across(_RATES, shares, 34, bottom, {0.5: "even"})
    heads = {_RATES.start: "A's win rate, 95% interval", _COUNTS.start: "pairs", _NUMBERS: "A : B (ties), p-value"}
    parts += [text(x, 18, head) for x, head in heads.items()]
    for number, (group, found) in enumerate(rows):
        parts += _win_row(52 + ROW * number, group, found)
    if len(shown) < len(groups):
        parts.append(text(0, bottom + 16, f"and {len(groups) - len(shown)} smaller groups", kind="soft"))
    return drawing(WIDTH, bottom + 24, *parts)


def _win_row(y: float, group: str, found: Mapping[str, Json]) -> list[Html]:
    a, b, ties, _, _, p_value = _tally_texts(found)
    parts = [text(0, y + 4, group if len(group) < 24 else group[:22] + "…")]
    if found["rate"] is not None:
        parts.append(line(_RATES(found["low"]), y, _RATES(found["high"]), y, "ink"))
        parts.append(dot(_RATES(found["rate"]), y, "ink", radius=4.5))
    total, start = found["a"] + found["b"] + found["ties"], 0
    for name in ("a", "ties", "b"):
        left, right = (_COUNTS(count / total) for count in (start, start + found[name]))
        if right > left:
            parts.append(box(left, y - 8, right - left, 16, _COLOURS[name], f"{found[name]} of {total}"))
        start += found[name]
    decided = f", p {p_value}" if p_value else ""
    return [*parts, text(_NUMBERS, y + 4, f"{a} : {b} ({ties}){decided}")]


def _scores(scores: Sequence[float]) -> Html:
    """How clear the verdicts are: mean log-odds of A over B, by pair."""
    limit = max(1e-9, max(map(abs, scores)))
    counts = Counter(min(_BINS - 1, int(_BINS * (score + limit) / (2 * limit))) for score in scores)
    across = Scale(-limit, limit, _RATES.start, _COUNTS.stop)
    kinds = [_COLOURS["b" if 2 * place < _BINS else "a"] for place in range(_BINS)]
    parts = [text(across.start, 14, "log-odds of A over B, by pair"), *bars(counts, across, 22, _PANEL, kinds)]
    for value in (-limit, 0.0, limit):
        parts.append(text(across(value), 22 + _PANEL + 16, f"{value:.3g}", "middle", "soft"))
    return drawing(WIDTH, 22 + _PANEL + 24, *parts)


def _lengths(results: Mapping[str, Json]) -> Html:
    """How long the texts are, in words: those of A, of B and of people."""
    kinds = [kind for kind in ("a", "b", "human") if kind in results["texts"]]
    words = {kind: [len(split_words(pair[kind])) for pair in results["pairs"]] for kind in kinds}
    longest = max(1, *(max(lengths) for lengths in words.values()))
    step = max(1, -(-(longest + 1) // _BINS))
    across, height = Scale(0, step * _BINS, _RATES.start, _COUNTS.stop), _PANEL + 12
    parts = [text(across.start, 14, "length in words")]
    for number, (kind, lengths) in enumerate(words.items()):
        top, counts = 22 + height * number, Counter(length // step for length in lengths)
        parts.append(text(0, top + _PANEL - 4, {"a": "A", "b": "B"}.get(kind, kind)))
        parts += bars(counts, across, top, _PANEL, [_COLOURS[kind]] * _BINS)
    bottom = 22 + height * len(words)
    for value in (0, across.high / 2, across.high):
        parts.append(text(across(value), bottom + 6, f"{value:g}", "middle", "soft"))
    return drawing(WIDTH, bottom + 14, *parts)


def _pairs(results: Mapping[str, Json]) -> list[Html]:
    """The first pairs, with who won each question."""
    kinds = {"a": "A", "b": "B", "human": "a person"} if "b" in results["texts"] else {"a": "A", "b": "B, a person"}
    parts = []
    for pair in results["pairs"][:PAIRS]:
        won = ", ".join({"a": "A", "b": "B", "tie": "tie"}[verdict["winner"]] for verdict in pair["verdicts"])
        texts = [element("div", element("b", name), pair[kind]) for kind, name in kinds.items()]
        summary = element("summary", f"{won}: {' '.join(pair['prompt'].split())}")
        parts.append(element("details", summary, element("div", *texts, kind="columns")))
    if len(results["pairs"]) > PAIRS:
        parts.append(note(f"The first {PAIRS} of {len(results['pairs'])}; --out FILE.json has all."))
    return parts
