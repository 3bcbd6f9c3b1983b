"""The results of lm-evaluation-harness as a table."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from samestep import Trained
from samestep.core.console import PlainConsole


def show_results(trained: Trained, results: Mapping[str, Any]) -> None:
    """Print them, one row per metric."""
    table = Table(title=f"{trained.source}", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("task", "questions", "metric", "value", "error"):
        table.add_column(name, justify="right" if name in ("questions", "value", "error") else "left", no_wrap=True)
    for row in metric_rows(results):
        table.add_row(*row)
    PlainConsole().print(table)


def metric_rows(results: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str, str]]:
    """Task, number of questions, metric, value and standard error: one row per metric."""
    for task, found in results["results"].items():
        questions = str(results.get("n-samples", {}).get(task, {}).get("effective", ""))
        for name, value in found.items():
            metric, _, filter_name = name.partition(",")
            if not filter_name or not isinstance(value, float | int) or metric.endswith("_stderr"):
                continue
            error = found.get(f"{metric}_stderr,{filter_name}")
            shown = f"{error:.4f}" if isinstance(error, float) else ""
            yield (
                task,
                questions,
                metric if filter_name == "none" else f"{metric} ({filter_name})",
                f"{value:.4f}",
                shown,
            )
