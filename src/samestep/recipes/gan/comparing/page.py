"""A comparison as one HTML page without scripts or other files, made from the template page.html."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from samestep.core.html_template import fill_template
from samestep.core.records import Json
from samestep.recipes.gan.comparing.results import (
    METRICS,
    about_answers,
    heading,
    metric_rows,
    rows_of,
    tally_texts,
)
from samestep.recipes.gan.text_metrics import split_words

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
        "NOTES": "\n".join(f'<p class="note">{escape(line)}</p>' for line in heading(results)),
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
    (total, *groups), parts = rows_of(asked), []
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
    a, b, ties, _, _, p_value = tally_texts(found)
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
    head = "".join(f"<th>{escape(name)}</th>" for name in METRICS)
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in metric_rows(results))
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
