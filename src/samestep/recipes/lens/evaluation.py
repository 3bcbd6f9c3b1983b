"""The evaluation of a trained lens on held-out activations: as the last stage of a run, and by `samestep evaluate RUN`.

Both measure the same rows with the same noise. The stage takes the best weights of training.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep import Batch, Bench, Dump, Trained, World
from samestep.core.config.bounds import Count
from samestep.core.config.checked import CheckedConfig
from samestep.core.output import print_text
from samestep.core.paths import check_new_file
from samestep.core.records import write_json
from samestep.core.safe_files import write_text
from samestep.parallel.precision import autocast
from samestep.recipes.lens.activations import ActivationRows, open_activations
from samestep.recipes.lens.baselines import Ask, fit_baselines
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.dump import frozen_model, weights_hash
from samestep.recipes.lens.explanations import records_of
from samestep.recipes.lens.held_out import SpreadRows, compute_rows, model_of, rows_of
from samestep.recipes.lens.language_model import LanguageModel
from samestep.recipes.lens.measuring import METHODS, Measuring, results_of, value_fields
from samestep.recipes.lens.network import What
from samestep.recipes.lens.page import evaluation_page
from samestep.recipes.lens.task import LEARNER, make_lens
from samestep.train.artifacts.array_rows import ArrayRows
from samestep.train.learner.lora import to_type
from samestep.train.trained.batch_inference import network_of
from samestep.train.weights.run_checkpoints import choose_together
from samestep.train.weights.sources import NamedWeights

STAGE = "eval"
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


@dataclass(frozen=True)
class EvaluationOptions(CheckedConfig):
    """What to evaluate on."""

    rows: Count | None = None
    """Held-out activations, evenly spread over all of them; by default as many as the run's evaluation.rows."""
    best_of: Count | None = None
    """Explanations of each, of which the best is kept; by default evaluation.best_of."""
    html: Path | None = None
    """Also write a page with metrics and explanations to this file."""
    batch_size: Count = 32
    """Activations at once on a device."""

    def __post_init__(self) -> None:
        """Refuse a file that exists, before the model is opened."""
        if self.html is not None:
            check_new_file("--html", self.html)


class Evaluation(Dump):
    """Measures held-out rows, batch by batch."""

    def __init__(self, bench: Bench, measuring: Measuring, rows: SpreadRows) -> None:
        fields = value_fields(bench.config.t_text)
        artifact = bench.array_artifact(ARTIFACT, len(rows), fields)
        super().__init__(bench.evaluation_feed(rows), measuring, artifact)
        self.rows, self.model = rows, measuring.model


def build_evaluation(bench: Bench, trained_by: str) -> Evaluation:
    """The stage; `trained_by` is the one whose best weights are evaluated."""
    config: LensConfig = bench.config
    model = frozen_model(bench)
    network = model.network()
    weights = weights_hash(network) if bench.world.is_main else ""  # now: it gets adapters, and another type
    lens = make_lens(config, model, network)
    to_type(lens, getattr(torch, config.distributed.dtype))
    # Before it is frozen as a whole: only what trained is in a checkpoint.
    best = choose_together(bench.world, bench.rundir, "best", learner=LEARNER, stage=trained_by)
    NamedWeights(best, bench.world, bench.shared).fill_for(LEARNER)(lens)
    frozen = bench.frozen(lens, name="lens", shard=config.distributed.strategy == "fsdp")
    measuring, rows = _measuring(frozen, model, open_activations(bench, model, weights), config, bench.world)
    bench.screen.print(f"{len(rows):,} held-out activations, {config.evaluation.best_of} explanations of each")
    return Evaluation(bench, measuring, rows)


def _measuring(
    ask: Ask, model: LanguageModel, found: ActivationRows, config: LensConfig, world: World
) -> tuple[Measuring, SpreadRows]:
    """What measures rows, with baselines that are fitted now, and the rows. Collective."""
    own = config.evaluation
    baselines = fit_baselines(ask, found.train, own.fit_rows, config.batch_size, world)
    return Measuring(ask, model, baselines, own.best_of), SpreadRows(found.validation, own.rows)


def write_results(task: Evaluation, bench: Bench) -> None:
    """Metrics, explanations and the page, of the rows that all ranks have measured."""
    own = bench.config.evaluation

    def write() -> None:
        if not bench.world.is_main:
            return
        values = ArrayRows(bench.artifact(ARTIFACT)).rows(np.arange(len(task.rows)))
        results, records = _found(values, task.rows, task.model, bench.config)
        with bench.write_artifact(RESULTS) as path:
            write_json(path, results)
        with bench.write_artifact(RECORDS) as path:
            write_text(path, "".join(f"{json.dumps(record)}\n" for record in records))
        with bench.write_artifact(PAGE) as path:
            write_text(path, evaluation_page(results, records[: own.shown], table_of(results)))
        bench.screen.print("\n".join(_lines(table_of(results))))

    bench.world.run_on_all_ranks("writing the evaluation", write)


def _found(
    values: Mapping[str, Tensor], rows: SpreadRows, model: LanguageModel, config: LensConfig
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    about = {
        "model": model.name,
        "layer": config.layer_l,
        "t_text": config.t_text,
        "best_of": config.evaluation.best_of,
    }
    return {**about, **results_of(values)}, records_of(values, rows, model)


def evaluate(trained: Trained, options: EvaluationOptions, world: World) -> dict[str, Any]:
    """What `samestep evaluate RUN` does: the metrics, and an explanation of each row. Collective."""
    config: LensConfig = trained.config
    wanted = {name: value for name in ("rows", "best_of") if (value := getattr(options, name)) is not None}
    own = replace(config.evaluation, **wanted)
    own = own if own.rows else replace(own, rows=type(own)().rows)
    config = replace(config, evaluation=own, batch_size=options.batch_size)
    network, compute = network_of(trained, LEARNER, world.device)

    def ask(batch: Batch, what: What) -> dict[str, Tensor]:
        with torch.no_grad(), autocast(world.device, compute):
            found: dict[str, Tensor] = network(batch, what)
        return found

    model = model_of(trained, world)
    measuring, rows = _measuring(ask, model, rows_of(trained, model, world), config, world)
    values = compute_rows(rows, measuring, options.batch_size, world)
    results, records = _found(values, rows, model, config)
    if options.html is not None and world.is_main:
        write_text(options.html, evaluation_page(results, records[: own.shown], table_of(results)))
    return {**results, "explanations": records}


def table_of(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A table, its head first: one row for each method."""
    rows: list[tuple[str, ...]] = [("", "FVE", "KL recovered", "KL", "relative error")]
    for name in METHODS:
        found = results["methods"][name]
        metrics = (found["fve"], found["kl_recovered"], found["kl"], found["relative_error"])
        rows.append((_TITLES[name].format(**results), *(f"{value:.4f}" for value in metrics)))
    return rows


def _lines(table: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in table]


def show(trained: Trained, results: Mapping[str, Any]) -> None:
    """Print the table, and what it is of."""
    print_text(f"{results['rows']:,} held-out activations of layer {results['layer']} of {results['model']}")
    print_text("\n".join(_lines(table_of(results))))
    print_text(f"{100 * results['same_tokens']:.1f}% of the explanations have the same tokens after they were text")
