"""An evaluation as one HTML page without scripts or other files, made from the template page.html."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from samestep.core.html_template import fill_template
from samestep.core.records import Json
from samestep.recipes.lens.explanations import visible
from samestep.recipes.lens.measuring import LENS, METHODS

TEMPLATE = Path(__file__).with_name("page.html")
_WIDEST = 12
"""Of a bar, in rem."""


def evaluation_page(
    results: Mapping[str, Json], records: Sequence[Mapping[str, Json]], table: Sequence[Sequence[str]]
) -> str:
    """The page: the metrics, which `table` has as text with its head first, and explanations."""
    about = f"{results['rows']:,} held-out activations, explained in {results['t_text']} tokens"
    same = f"{100 * results['same_tokens']:.1f}% of the explanations have the same tokens after they were text"
    parts = {
        "TITLE": escape(f"Layer {results['layer']} of {results['model']}"),
        "NOTES": "\n".join(f'<p class="note">{escape(line)}.</p>' for line in (about, same)),
        "METRICS": _metrics(results, table),
        "TEXTS": _texts(results, records),
    }
    return fill_template(TEMPLATE, parts)


def _metrics(results: Mapping[str, Json], table: Sequence[Sequence[str]]) -> str:
    head, *rows = table
    names = "<th></th><th></th>" + "".join(f'<th class="number">{escape(name)}</th>' for name in head[1:])
    lines = []
    for method, row in zip(METHODS, rows, strict=True):
        share = min(1.0, max(0.0, results["methods"][method]["fve"]))
        kind = "bar lens" if method in LENS else "bar"
        bar = f'<span class="{kind}" style="width:{_WIDEST * share:.2f}rem"></span>'
        numbers = "".join(f'<td class="number">{escape(cell)}</td>' for cell in row[1:])
        lines.append(f'<tr><td>{escape(row[0])}</td><td style="min-width:{_WIDEST}rem">{bar}</td>{numbers}</tr>')
    return f"<table><tr>{names}</tr>{''.join(lines)}</table>"


def _texts(results: Mapping[str, Json], records: Sequence[Mapping[str, Json]]) -> str:
    heads = ("context", "sampled", "error", "greedy", "error", f"best of {results['best_of']}", "error")
    kinds = ["number" if name == "error" else "" for name in heads]
    names = "".join(f'<th class="{kind}">{escape(name)}</th>' for kind, name in zip(kinds, heads, strict=True))
    more = ""
    if len(records) < results["rows"]:
        more = f'<p class="note">The first {len(records)} of {results["rows"]:,}.</p>'
    return f'<table class="texts"><tr>{names}</tr>{"".join(map(_row, records))}</table>{more}'


def _row(record: Mapping[str, Json]) -> str:
    before, token, after = (escape(visible(record[name])) for name in ("before", "token", "after"))
    cells = [f'<td class="text">{before}<mark>{token}</mark><span class="unread">{after}</span></td>']
    for text, error in (("sampled", "error"), ("greedy", "greedy_error"), ("best", "best_error")):
        cells.append(f'<td class="text">{escape(visible(record[text]))}</td>')
        cells.append(f'<td class="number">{record[error]:.3f}</td>')
    return f"<tr>{''.join(cells)}</tr>"
