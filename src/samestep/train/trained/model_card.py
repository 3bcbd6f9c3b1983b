"""The card of an exported model (README.md): what is true of it, and nothing of the machine it was made on."""

import json
import logging
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep.checkpoint.manifest import read_manifest
from samestep.core.config import build, dump
from samestep.core.config.no_effect import TYPED
from samestep.core.errors import UserError
from samestep.core.json_files import JsonLines
from samestep.core.safe_files import write_text
from samestep.data.text import UNPACKED
from samestep.train.api.given_settings import check_given
from samestep.train.api.recipe import Recipe
from samestep.train.record.fixed_values import DATA, read_fixed
from samestep.train.record.run_record import RunRecord
from samestep.train.trained.told import told, told_text
from samestep.train.trained.trained_model import Trained
from samestep.train.weights.sources import is_checkpoint

logger = logging.getLogger(__name__)

CARD = "README.md"
UNNAMED = "recipe of its own"
"""A recipe whose name may not be told."""
_OF_THE_MACHINE = ("out", "name", "preset", "log.", "watch.", "checkpoint.", "distributed.", "num_workers", "prefetch")
_OF_THE_LAUNCH = ("max_time", "until", "start_over", "extend", "profile", "evidence")
_WHERE = ("stage", "step", "epoch")
"""What every row of metrics begins with."""
_FIRST_WEIGHTS = ("init_from", "continue_from", "stages_from")


@dataclass(frozen=True)
class ModelCard:
    """What is known of a model. What is not given is not mentioned."""

    title: str
    introduction: str
    usage: Sequence[str]
    """Lines of Python that load it."""
    header: Mapping[str, Any] = field(default_factory=dict)
    """What the Hub reads, such as `library_name`: texts, or lists of texts."""
    sections: Mapping[str, str] = field(default_factory=dict)
    """Further text, by the title of its section."""

    def __str__(self) -> str:
        parts = [
            _header(self.header),
            f"# {self.title}",
            self.introduction,
            _section("Usage", code_block("python", self.usage)),
            *(_section(title, text) for title, text in self.sections.items()),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"


def trained_card(
    trained: Trained,
    what: str,
    usage: Sequence[str],
    licence: str,
    *,
    base: str | None = None,
    header: Mapping[str, Any] | None = None,
    sections: Mapping[str, str] | None = None,
) -> ModelCard:
    """The card of what a run has trained. `what` is a sentence on it; `base` names what it began as, where that has a
    name; `sections` come before those on its training."""
    recipe, data = told_text(trained.name) or UNNAMED, _data(trained)
    facts = {"Recipe": f"`{recipe}` of samestep", "Base model": base or ""}
    command = ""
    if is_checkpoint(trained.source):  # of any other source nobody knows how it was trained
        facts |= _training(trained) | {f"Data for {purpose}": rows for purpose, rows in data.items()}
        command = "\n\n" + code_block("sh", _command(trained))
    metrics = {"value": validation_metrics(trained)}
    return ModelCard(
        title=f"{recipe}: {trained.learner_name()}",
        introduction=what,
        usage=usage,
        header={**(header or {}), "license": licence},
        sections={
            **(sections or {}),
            "Training": listing(facts) + command,
            "Evaluation": metrics_table(metrics, _measured_on(trained, data.get("validation", ""))),
        },
    )


def _training(trained: Trained) -> dict[str, str]:
    """What a checkpoint and its configuration say."""
    config = trained.config
    return {
        "Network": told_text(_described(trained, trained.learner_name(), "model")) or "",
        "Stage": f"`{trained.stage}`",
        "First weights": ", ".join(_first_weights(told(dump(config)))),
        "Steps": f"{read_manifest(trained.source).step:,}",
        "Rows a step": str(config.global_batch_size or ""),
        "Seed": str(config.seed),
        "Data": told_text(_described(trained, "dataset")) or "",
    }


def write_card(folder: Path, card: ModelCard) -> None:
    """Into an exported folder."""
    write_text(folder / CARD, str(card))


def _first_weights(settings: Mapping[str, Any]) -> Iterable[str]:
    """What a run, or a network of it, began with."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _first_weights(value)
        elif name in _FIRST_WEIGHTS and value:
            yield f"`{value}`"


def _described(trained: Trained, *names: str) -> str:
    """The first of these facts that the banner of the run has."""
    facts = trained.recipe.describe(trained.config) if trained.recipe.describe else {}
    return next((str(facts[name]) for name in names if name in facts), "")


def _data(trained: Trained) -> dict[str, str]:
    """By purpose, how many rows the stage had, and the names of their files."""
    recorded = read_fixed(trained.run).get(trained.stage, {}).get(DATA, {}) if trained.run else {}
    own = trained.run.path.absolute() if trained.run else Path()
    found = {}
    for purpose, feeds in recorded.items():
        paths = (Path(file["path"]) for feed in feeds for file in feed.get("files", []) if "path" in file)
        named = (path for path in paths if path.suffix != UNPACKED)  # made of other files, which have names
        files = sorted({path.name for path in named if not path.absolute().is_relative_to(own)})
        rows = " and ".join(dict.fromkeys(f"{feed['rows']:,}" for feed in feeds))
        found[purpose] = f"{rows} rows" + f" of {', '.join(files)}" * bool(files)
    return found


def _measured_on(trained: Trained, rows: str) -> str:
    part = "the part of the data that was kept for validation" + f" ({rows})" * bool(rows)
    is_chosen = any(stage.name == trained.stage and stage.best for stage in trained.recipe.stages(trained.config))
    return f"at this step, on {part}" + "; checkpoints are chosen by that part, so it is no test" * is_chosen


def _command(trained: Trained) -> list[str]:
    """The command that trains it again: what differs from its preset, without what is of one machine or launch; and a
    remark where something of it is not told."""
    config, recipe = _as_started(trained), trained.recipe
    preset = dump(build(recipe.config, dict(recipe.presets.get(config.preset, {}))))
    words = ["samestep", "train", told_text(trained.name) or UNNAMED]
    words += ["--preset", config.preset] if config.preset in recipe.presets else []
    untold = []
    for name, value in _differing(preset, dump(config)):
        if name.startswith((*_OF_THE_MACHINE, *_OF_THE_LAUNCH)) or not _has_effect(recipe, config, name):
            continue
        said = told({name.rpartition(".")[2]: value})  # with its name, by which a secret is known
        (found,) = said.values() or (None,)
        if found is None and value is not None:
            untold.append(name)
        else:
            words.append(f"{name}={found if isinstance(found, str) else json.dumps(found)}")
    remark = [f"# with another {name}, which is not told" for name in untold]
    return [*remark, " ".join(shlex.quote(word) for word in words)]


def _as_started(trained: Trained) -> Any:
    """The configuration of the whole run, of which a stage may have changed its own; of a checkpoint alone, its own."""
    record = RunRecord.read(trained.run) if trained.run else None
    return trained.config if record is None else build(trained.recipe.config, record.config)


def _has_effect(recipe: Recipe, config: Any, name: str) -> bool:
    """Whether a setting may be given beside the others: some were found for the run, and would be refused."""
    try:
        check_given(recipe, config, {name: TYPED})
    except UserError:
        return False
    return True


def _differing(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in after.items():
        known = before.get(name)
        if isinstance(value, Mapping) and isinstance(known, Mapping) and known.keys() >= value.keys():
            yield from _differing(known, value, f"{prefix}{name}.")
        elif value != known:
            yield prefix + name, value


def validation_metrics(trained: Trained) -> dict[str, float]:
    """What the run's own validation found of this checkpoint, if it is one that was validated."""
    if trained.run is None or not is_checkpoint(trained.source):
        return {}
    step = read_manifest(trained.source).step
    found: dict[str, float] = {}
    is_reached = False
    for row in JsonLines(trained.run.metrics):
        at = row.get("step")
        if row.get("stage") != trained.stage or not isinstance(at, int) or at < step:
            continue
        is_reached = True
        if at == step:
            found |= _of_validation(row)
    if not is_reached:
        where = trained.run.metrics
        logger.warning("%s ends before step %d: what validation found there is not in the model card", where, step)
    return found


def _of_validation(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a row that is of a validation: unlike those of training, all their names begin alike."""
    numbers = {name: value for name, value in row.items() if name not in _WHERE and isinstance(value, int | float)}
    sections = {name.rpartition("/")[0] and name.partition("/")[0] for name in numbers}
    is_one = len(sections) == 1 and "" not in sections
    return {name.partition("/")[2]: value for name, value in numbers.items()} if is_one else {}


def listing(facts: Mapping[str, str]) -> str:
    """Facts as a list, without those that are empty."""
    return "\n".join(f"- {name}: {value}" for name, value in facts.items() if value)


def metrics_table(metrics: Mapping[str, Mapping[str, float]], measured: str) -> str:
    """The metrics of each model, in a column of its name; one that lacks a metric gets an empty cell."""
    names = list(dict.fromkeys(name for found in metrics.values() for name in found))
    rows = [_row(["metric", *metrics]), _row(["---"] * (len(metrics) + 1))]
    for name in names:
        rows.append(_row([name, *(f"{found[name]:.4f}" if name in found else "" for found in metrics.values())]))
    return f"Measured {measured}.\n\n" + "\n".join(rows) if names else ""


def _header(entries: Mapping[str, Any]) -> str:
    """YAML."""
    lines = []
    for name, value in entries.items():
        if isinstance(value, str):
            lines.append(f"{name}: {value}")
        elif value:
            lines += [f"{name}:", *(f"- {json.dumps(each) if '/' in each else each}" for each in value)]
    return "\n".join(("---", *lines, "---"))


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def code_block(language: str, lines: Sequence[str]) -> str:
    """A block whose content cannot end it."""
    text = "\n".join(lines).replace("```", "` ` `")
    return f"```{language}\n{text}\n```"


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}" if text else ""
