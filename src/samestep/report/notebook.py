"""Runs in a notebook, or at a Python prompt: `samestep.runs()` lists them, `samestep.run(NAME)` opens one.

What is asked for is read at that moment, so that a run in progress gives new values each time. Nothing is locked, and
nothing is written but the page of `report`. Torch is not imported; pandas and matplotlib are used where they are
installed.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.core.near_names import did_you_mean
from samestep.core.output import escape_controls, plural
from samestep.core.pages.html import Html, element, note
from samestep.core.rundir import RunDir
from samestep.report.curve_plots import choose_curves, curve_images, main_curves, plot_curves
from samestep.report.html_report import write_report
from samestep.report.metrics_table import as_table, column_of, metrics_columns, notebook_table
from samestep.report.run_summary import BestValue, RunSummary, find_runs, read_summary
from samestep.report.runs_table import COLUMNS, chosen, facts, runs_table
from samestep.report.samples import sample_rows
from samestep.report.series import Curve, read_curves
from samestep.report.shown import shown_event
from samestep.train.record.damaged_files import Reader
from samestep.train.record.run_record import find_run
from samestep.train.record.samples import TYPES
from samestep.train.trained.shown import shown_settings

MOST_CURVES = 12
"""Curves of a run that a notebook shows with it; `plot` draws any."""
_TEXTS = ("name", "recipe", "state", "stage", "metric", "host", "path")
"""Columns of the list of runs that are no numbers."""


def run(name: str | Path, folder: str | Path = "runs") -> "Run":
    """A run, by its name in `folder` or by its path, to look at in a notebook.

    It has `state`, `stage`, `step`, `steps`, `best`, `recipe`, `settings`, `events`, `samples` and `damage`, a table
    `metrics`, and the methods `plot("loss", "val/*")` and `report()`. All are read anew each time.
    """
    return Run(find_run(str(name), str(folder), damaged=True))


def runs(folder: str | Path = "runs", filter: str | Sequence[str] = (), sort: str = "age") -> "Runs":
    """The runs in a folder, as `samestep runs` lists them: by number, by name, or one after the other.

    `filter` is a word, or a condition such as `"state=failed"` or `"best<2.5"`, or several of them; `sort` a column,
    with - in front the other way round. Which runs there are is looked up now, what is shown of them each time.
    """
    filters = [filter] if isinstance(filter, str) else list(filter)
    found = {str(rundir.path): rundir for rundir in find_runs(Path(folder))}
    listed = [facts(read_summary(rundir)) for rundir in found.values()]
    return Runs([Run(found[each["path"]]) for each in chosen(listed, filters, sort)])


class Run:
    """One run. Each attribute is read from its files at the moment it is asked for."""

    def __init__(self, rundir: RunDir) -> None:
        self._rundir = RunDir(rundir.path.absolute())  # the notebook may change its folder

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.path.name

    @property
    def path(self) -> Path:
        """Its directory."""
        return self._rundir.path

    @property
    def recipe(self) -> str:
        """What it trains."""
        return self._summary().recipe

    @property
    def state(self) -> str:
        """running, done, preempted, failed, waiting, killed (it says that it runs, and does not), or not begun."""
        return self._summary().state

    @property
    def stage(self) -> str:
        """The stage that ran last."""
        return self._summary().stage

    @property
    def step(self) -> int | None:
        """The last step that is done, of that stage."""
        return self._summary().step

    @property
    def steps(self) -> int | None:
        """All steps of that stage."""
        return self._summary().steps

    @property
    def best(self) -> BestValue | None:
        """The best value so far: its `metric`, `value`, `step` and `stage`."""
        return self._summary().best

    @property
    def settings(self) -> dict[str, Any]:
        """The settings, in their sections; what looks like a secret is hidden."""
        return shown_settings(self._summary().settings)

    @property
    def events(self) -> list[dict[str, Json]]:
        """Launches, resumes, saves, warnings, in order; what looks like a secret is hidden."""
        return [shown_event(event) for event in self._summary().events]

    @property
    def samples(self) -> list[dict[str, Json]]:
        """The rows at the end of samples.jsonl, up to 16 MB of it."""
        reader, path = Reader(self.path), self._rundir.samples
        return [reader.typed(path, row, TYPES[row["kind"]]) for row in sample_rows(self._rundir, reader)]

    @property
    def damage(self) -> dict[str, str]:
        """What is wrong with files of the run, by their paths in it; the rest of them is used."""
        reader = Reader(self.path)
        self._curves(reader)
        return {**self._summary().damage, **reader.damage}

    @property
    def metrics(self) -> Any:
        """Stage, step, epoch and every metric, a row for each step that was logged, NaN where a metric was not: a
        pandas DataFrame, or a small table where pandas is not installed."""
        return as_table(metrics_columns(self._curves(Reader(self.path), with_epochs=True)))

    def plot(self, *names: str, stage: str | None = None) -> Any:
        """Draw metrics by name or by pattern; without a name all losses and validations. Gives the axes of matplotlib,
        or a plain drawing where that is not installed."""
        curves = choose_curves(self._curves(Reader(self.path)), names, stage, escape_controls(self.name))
        return plot_curves(curves, self.name)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the page of `samestep report`, by default to report.html in the run; returns its path."""
        return write_report([self._rundir], None if path is None else Path(path))

    def _summary(self) -> RunSummary:
        return read_summary(self._rundir)

    def _curves(self, reader: Reader, *, with_epochs: bool = False) -> dict[str, dict[str, Curve]]:
        return read_curves(self._rundir, reader, with_epochs=with_epochs)

    def _repr_html_(self) -> str:
        reader, summary = Reader(self.path), self._summary()
        curves = main_curves(self._curves(reader))
        left_out = len(curves) - MOST_CURVES
        more = [note(f"and {plural(left_out, 'more curve')}; plot draws any")] if left_out > 0 else []
        damage = _damage(self.name, {**summary.damage, **reader.damage})
        parts = [notebook_table(runs_table([facts(summary)])), *damage, curve_images(curves[:MOST_CURVES]), *more]
        return element("div", *parts, kind="samestep")

    def __repr__(self) -> str:
        (cells,) = runs_table([facts(self._summary())]).rows
        name, recipe, state, done, best, age, *_ = cells
        said = [recipe, state, done and f"step {done}", best and f"best {best}", age and f"written {age} ago"]
        return _one_line(f"{name}: {', '.join(each for each in said if each)}")


class Runs(Sequence[Run]):
    """Some runs of a folder, in an order: `runs[0]`, `runs["demo-1"]`, `for run in runs`."""

    def __init__(self, found: Sequence[Run]) -> None:
        self._found = found

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, key: int | str) -> Run: ...

    @overload
    def __getitem__(self, key: slice) -> "Runs": ...

    def __getitem__(self, key: int | str | slice) -> "Run | Runs":
        if isinstance(key, slice):
            return Runs(self._found[key])
        if isinstance(key, int):
            return self._found[key]
        names = [run.name for run in self._found]
        if key not in names:
            raise UserError(f"no run {key!r} is among these {len(names)}{did_you_mean(key, names)}")
        return self._found[names.index(key)]

    def __iter__(self) -> Iterator[Run]:
        return iter(self._found)

    @property
    def table(self) -> Any:
        """What is known of each, a run a row: a pandas DataFrame, or a small table where pandas is not installed."""
        listed = self._facts()
        names = [name for name in listed[0] if name != "damage"] if listed else COLUMNS
        return as_table({name: column_of([each[name] for each in listed], name not in _TEXTS) for name in names})

    def _facts(self) -> list[Mapping[str, Any]]:
        return [facts(run._summary()) for run in self._found]

    def _repr_html_(self) -> str:
        listed = self._facts()
        damage = [part for each in listed for part in _damage(each["name"], each["damage"])]
        parts = [notebook_table(runs_table(listed)), note(plural(len(self), "run")), *damage]
        return element("div", *parts, kind="samestep")

    def __repr__(self) -> str:
        listed = self._facts()
        damage = [f"{each['name']}: {file}: {why}" for each in listed for file, why in each["damage"].items()]
        lines = [runs_table(listed).text()] if listed else []
        return escape_controls("\n".join([*lines, plural(len(self), "run"), *damage]))


def _damage(name: str, damage: Mapping[str, str]) -> list[Html]:
    """What cannot be read of a run."""
    return [note(f"{name}: {file}: {why}") for file, why in damage.items()]


def _one_line(text: str) -> str:
    return escape_controls(" ".join(text.split()))
