"""The evaluation of a trained lens on activations of the test part: as the last stage of a run, and by `samestep
evaluate RUN`.

Both measure the same rows with the same noise. The stage takes the best weights of training. What is found are metrics,
explanations beside the text that they are about, and one HTML page. All say which part of the texts they are about.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep import Batch, Bench, Dump, LanguageModel, Trained, World
from samestep.core.config.bounds import Count
from samestep.core.config.checked import CheckedConfig
from samestep.core.json_files import Json, write_json
from samestep.core.output import print_text
from samestep.core.pages.drawing import box, drawing
from samestep.core.pages.html import Html, element, note, page, section
from samestep.core.pages.tables import Column, Table
from samestep.core.paths import check_new_file
from samestep.core.safe_files import write_text
from samestep.data.split import PART_NOTES
from samestep.parallel.precision import autocast
from samestep.recipes.lens.activations import ActivationRows, frozen_model, model_of, open_activations, rows_of
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.language_model import context_of
from samestep.recipes.lens.measuring import (
    LENS,
    METHODS,
    Ask,
    Measuring,
    SpreadRows,
    activation_of,
    compute_values,
    fit_baselines,
    results_of,
    value_fields,
    variance_of,
)
from samestep.recipes.lens.network import Computation
from samestep.recipes.lens.task import LEARNER, trained_lens
from samestep.train.artifacts.array_rows import ArrayRows
from samestep.train.trained.batch_inference import network_of

ARTIFACT, RESULTS, RECORDS, PAGE = "rows", "results.json", "explanations.jsonl", "explanations.html"
_TITLES = {
    "sampled": "lens, sampled",
    "greedy": "lens, greedy",
    "best_of_n": "lens, best of {best_of}",
    "round_trip": "lens, round trip",
    "zero": "zero",
    "mean": "mean",
    "shuffled": "shuffled",
    "linear_lens": "linear lens",
}
_BAR = (190, 12)
"""Width and height of the longest bar."""
_ABOUT_METRICS = (
    "FVE: fraction of the variance of these activations, around their own mean, that is explained. KL recovered: 1 "
    "where the model's output is its own, 0 where it is that with the mean of training in the activation's place. "
    "Relative error: squared error divided by the activation's squared norm. Mean: that of training."
)
_ABOUT_TEXTS = (
    "The marked token is the one whose activation is explained; the model had not read what comes after it. Errors are "
    "relative."
)
_SIGNS = {"\n": "⏎", "\t": "⇥", "\r": "␍"}


@dataclass(frozen=True)
class EvaluationOptions(CheckedConfig):
    """What to evaluate on."""

    limit: Count | None = None
    """Activations of the test part, evenly spread over it; by default as many as the run's evaluation.rows."""
    best_of: Count | None = None
    """Explanations of each, of which the best is kept; by default evaluation.best_of."""
    html: Path | None = None
    """Also write a page with metrics and explanations to this file."""
    batch_size: Count = 32
    """Activations at once on a device."""

    def __post_init__(self) -> None:
        if self.html is not None:
            check_new_file("--html", self.html)  # before the model is opened


@dataclass(frozen=True)
class Subject:
    """What is measured, on which activations."""

    measuring: Measuring
    rows: SpreadRows
    part: str
    """The part of the texts that the rows are of."""
    variance: float
    """Of the activations of the rows."""
    stage: str
    """The stage that trained the lens."""

    def results(self, values: Mapping[str, Tensor], config: LensConfig) -> dict[str, Any]:
        """All metrics, from the values of all rows, and what they are of."""
        about = {"model": self.measuring.model.name, "layer": config.layer_l, "stage": self.stage, "part": self.part}
        how = {"t_text": config.t_text, "best_of": self.measuring.best_of, "variance": self.variance}
        return {**about, **how, **results_of(values, self.variance)}


class Evaluation(Dump):
    """Measures rows batch by batch."""

    def __init__(self, bench: Bench, subject: Subject) -> None:
        artifact = bench.array_artifact(ARTIFACT, len(subject.rows), value_fields(bench.config.t_text))
        super().__init__(bench.evaluation_feed(subject.rows), subject.measuring, artifact)
        self.subject = subject


def build_evaluation(bench: Bench, trained_by: str) -> Evaluation:
    """`trained_by` is the stage whose best weights are evaluated."""
    config: LensConfig = bench.config
    model = frozen_model(bench)
    frozen = trained_lens(bench, model, trained_by, name="lens")
    subject = subject_of(frozen, model, open_activations(bench, model), config, trained_by, bench.world)
    bench.screen.print(_about(len(subject.rows), subject.part, trained_by, config.layer_l, model.name))
    return Evaluation(bench, subject)


def write_results(task: Evaluation, bench: Bench) -> None:
    """Metrics, explanations and the page, of the rows that all ranks have measured."""
    own = bench.config.evaluation

    def write() -> None:
        if not bench.world.is_main:
            return
        values = ArrayRows(bench.artifact(ARTIFACT)).rows(np.arange(len(task.subject.rows)))
        results, records = task.subject.results(values, bench.config), records_of(values, task.subject)
        with bench.write_artifact(RESULTS) as path:
            write_json(path, results)
        with bench.write_artifact(RECORDS) as path:
            write_text(path, "".join(f"{json.dumps(record)}\n" for record in records))
        with bench.write_artifact(PAGE) as path:
            write_text(path, evaluation_page(results, records[: own.shown]))
        bench.screen.print(table_of(results).text())

    bench.world.run_on_all_ranks("writing the evaluation", write)


def evaluate(trained: Trained, options: EvaluationOptions, world: World) -> dict[str, Any]:
    """What `samestep evaluate RUN` does: the metrics, and an explanation of each row. Collective."""
    config: LensConfig = trained.config
    given = {"rows": options.limit, "best_of": options.best_of}
    wanted = {name: value for name, value in given.items() if value is not None}
    own = replace(config.evaluation, **wanted)
    own = own if own.rows else replace(own, rows=type(own)().rows)
    config = replace(config, evaluation=own, batch_size=options.batch_size)
    network, compute = network_of(trained, LEARNER, world.device)

    def ask(batch: Batch, computation: Computation) -> dict[str, Tensor]:
        with torch.no_grad(), autocast(world.device, compute):
            found: dict[str, Tensor] = network(batch, computation)
        return found

    model = model_of(trained, world)
    subject = subject_of(ask, model, rows_of(trained, model, world), config, trained.stage, world)
    values = compute_values(subject.rows, subject.measuring, options.batch_size, world)
    results, records = subject.results(values, config), records_of(values, subject)
    if options.html is not None and world.is_main:
        write_text(options.html, evaluation_page(results, records[: own.shown]))
    return {**results, "explanations": records}


def subject_of(
    ask: Ask, model: LanguageModel, found: ActivationRows, config: LensConfig, stage: str, world: World
) -> Subject:
    """What is measured, with baselines that are fitted now. Collective."""
    own = config.evaluation
    baselines = fit_baselines(ask, found.train, own.fit_rows, config.rows_at_once, world)
    part, table = found.last
    rows = SpreadRows(table, own.rows)
    activations = compute_values(rows, lambda batch: {"A": activation_of(ask, batch)}, config.rows_at_once, world)["A"]
    return Subject(Measuring(ask, model, baselines, own.best_of), rows, part, variance_of(activations), stage)


def records_of(values: Mapping[str, Tensor], subject: Subject) -> list[dict[str, Json]]:
    """One record for each row: its context, its explanations, and how well they do."""
    rows, model = subject.rows, subject.measuring.model
    given = rows.rows(np.arange(len(rows)))
    error, kl = (dict(zip(METHODS, values[name].double().unbind(1), strict=True)) for name in ("error", "kl"))
    square = error["zero"]
    found: list[dict[str, Json]] = []
    for row in range(len(rows)):
        tokens, position = given["tokens"][row].tolist(), int(given["position"][row])
        texts: dict[str, Any] = {
            name: model.spell(values[name][row].tolist()) for name in ("sampled", "greedy", "best")
        }
        metrics = {
            "error": float(error["sampled"][row] / square[row]),
            "greedy_error": float(error["greedy"][row] / square[row]),
            "best_error": float(error["best_of_n"][row] / square[row]),
            "kl": float(kl["sampled"][row]),
        }
        found.append({"row": row, "position": position, **context_of(model, tokens, position), **texts, **metrics})
    return found


def visible(text: str) -> str:
    """A text on one line, with a sign for what cannot be printed."""
    return "".join(_SIGNS.get(sign, sign if sign.isprintable() else "·") for sign in text)


def table_of(results: Mapping[str, Any]) -> Table:
    """One row for each method."""
    rows = []
    for name in METHODS:
        found = results["methods"][name]
        metrics = (found["fve"], found["kl_recovered"], found["kl"], found["relative_error"])
        rows.append((_TITLES[name].format(**results), *(f"{value:.4f}" for value in metrics)))
    return Table(("", "FVE", "KL recovered", "KL", "relative error"), rows)


def show(trained: Trained, results: Mapping[str, Any]) -> None:
    """Print the table, and what it is of."""
    print_text(_about_results(results))
    print_text(table_of(results).text())
    print_text(_same(results))


def _about_results(results: Mapping[str, Any]) -> str:
    return _about(results["rows"], results["part"], results["stage"], results["layer"], results["model"])


def _about(rows: int, part: str, stage: str, layer: int, model: str) -> str:
    return f"stage {stage!r}, {rows:,} activations of layer {layer} of {model}: {PART_NOTES[part]}"


def _same(results: Mapping[str, Any]) -> str:
    return f"{100 * results['same_tokens']:.1f}% of the explanations have the same tokens after they were text"


def evaluation_page(results: Mapping[str, Json], records: Sequence[Mapping[str, Json]]) -> str:
    """Metrics and explanations."""
    about = f"{_about_results(results)}; {results['t_text']} tokens explain one"
    more = [note(f"The first {len(records)} of {results['rows']:,}.")] if len(records) < results["rows"] else []
    return page(
        f"Layer {results['layer']} of {results['model']}",
        note(f"{about[0].upper()}{about[1:]}."),
        note(f"{_same(results)}."),
        section("How much of the activations survives", _metrics(results), note(_ABOUT_METRICS)),
        section("Explanations", note(_ABOUT_TEXTS), _texts(results, records), *more),
    )


def _metrics(results: Mapping[str, Json]) -> Html:
    """The table, with bars for the explained variance."""
    table = table_of(results)
    (method, *metrics), (width, height) = table.all_columns, _BAR
    rows = []
    for name, (title, *numbers) in zip(METHODS, table.rows, strict=True):
        share = min(1.0, max(0.0, results["methods"][name]["fve"]))
        bar = box(0, 0, width * share, height, "blue" if name in LENS else "grey")
        rows.append((title, drawing(width, height, bar), *numbers))
    return Table((method, Column(), *metrics), rows).html()


def _texts(results: Mapping[str, Json], records: Sequence[Mapping[str, Json]]) -> Html:
    texts = {"sampled": "sampled", "greedy": "greedy", "best": f"best of {results['best_of']}"}
    columns = [column for title in texts.values() for column in (Column(title), Column("error", is_number=True))]
    return Table([Column("context"), *columns], [_row(record) for record in records]).html("ruled")


def _row(record: Mapping[str, Json]) -> list[str]:
    before, token, after = (visible(record[name]) for name in ("before", "token", "after"))
    cells: list[str] = [_code(before, element("mark", token), element("span", after, kind="faint"))]
    for name, error in (("sampled", "error"), ("greedy", "greedy_error"), ("best", "best_error")):
        cells += [_code(visible(record[name])), f"{record[error]:.3f}"]
    return cells


def _code(*parts: str) -> Html:
    return element("div", *parts, kind="code")
