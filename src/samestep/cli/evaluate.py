"""`samestep evaluate MODEL --tasks NAME,...`: score a trained model on tasks of lm-evaluation-harness."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from samestep.cli.args import override_config, run_on_model
from samestep.core.config import dump, split_options
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.records import write_atomically
from samestep.train.pretrained.trained_model import open_trained
from samestep.world.world import World

HELP = """samestep evaluate MODEL --tasks NAME,... [options] [settings, such as --batch_size 32]

Scores a trained model on tasks of lm-evaluation-harness (pip install 'samestep[eval]'). MODEL is a run, by name or
path, a checkpoint, or a folder with a published model. Likelihoods are Monte-Carlo estimates. Text is generated with
the settings of `sampling` (--sampling.steps 64); the task sets its length and temperature.

--tasks         names of tasks, with commas between them
--include_path  a folder with task files (YAML) of your own; local data needs no network
--limit         number of questions of each task
--fewshot       number of worked examples before each question, in place of the task's own number
--draws         Monte-Carlo draws for each likelihood (128)
--chat          ask as a user of a chat: for instruction-tuned models
--out           write all results to this .json file
--device        auto, cpu, cuda, cuda:N or xpu (auto)
--dtype         float32, bfloat16, float16 or float64, in place of the type the model was trained in

`torchrun --nproc_per_node=4 -m samestep evaluate ...` shares the questions among ranks; the results are the same."""
OPTIONS = ("tasks", "include_path", "limit", "fewshot", "draws", "out", "device", "dtype")
CHAT = "--chat"


def run(args: Sequence[str]) -> int:
    """Print the results of a trained model; exit code 2 when one rank or all of them cannot."""
    return run_on_model("evaluate", args, HELP, _evaluate)


def _evaluate(source: str, args: Sequence[str]) -> int:
    world = World.rendezvous()
    with world.together("opening the model"):
        options, settings = split_options([arg for arg in args if arg != CHAT], OPTIONS)
        how = _parsed_options(options, chat=CHAT in args)
        out = _out(options)
        trained = open_trained(source)
        evaluate = trained.recipe.evaluate
        if evaluate is None:
            raise UserError(f"the recipe {trained.name!r} has no function that evaluates its models")
        trained = replace(trained, config=override_config(trained.recipe, dump(trained.config), settings))
    world.connect(options.get("device", "auto"))
    with world.together("evaluating"):
        results = evaluate(trained, _tasks(options), world=world, dtype=options.get("dtype"), **how)
    results = {"samestep": {"model": str(trained.source), "settings": dump(trained.config), **how}, **results}
    if world.is_main:
        _show(results, f"{trained.source}")
        if out is not None:
            write_atomically(out, json.dumps(results, indent=2, ensure_ascii=False, default=str) + "\n")
    world.leave()
    return EXIT_DONE


def _tasks(options: Mapping[str, str]) -> list[str]:
    tasks = [name for name in options.get("tasks", "").split(",") if name]
    if not tasks:
        raise UserError("Name at least one task: --tasks NAME,...")
    return tasks


def _parsed_options(options: Mapping[str, str], chat: bool) -> dict[str, Any]:
    """The options whose values are not text."""
    _tasks(options)
    how: dict[str, Any] = {"chat": chat}
    for name, least in (("limit", 1), ("fewshot", 0), ("draws", 1)):
        if name in options:
            if not options[name].isdigit() or int(options[name]) < least:
                raise UserError(f"--{name} must be a whole number of at least {least}, not {options[name]!r}.")
            how[name] = int(options[name])
    if "include_path" in options:
        how["include_path"] = Path(options["include_path"])
        if not how["include_path"].is_dir():
            raise UserError(f"Give --include_path a folder with task files; {options['include_path']} is not a folder.")
    return how


def _out(options: Mapping[str, str]) -> Path | None:
    if "out" not in options:
        return None
    out = Path(options["out"])
    if not out.absolute().parent.is_dir():
        raise UserError(f"Make the folder of --out {out} first; it does not exist.")
    return out


def _show(results: Mapping[str, Any], title: str) -> None:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("task", "questions", "metric", "value", "error"):
        table.add_column(name, justify="right" if name in ("questions", "value", "error") else "left", no_wrap=True)
    for row in metric_rows(results):
        table.add_row(*row)
    Console(highlight=False).print(table)


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
