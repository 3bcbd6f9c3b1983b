"""`samestep runs [FOLDER ...]`, `samestep runs compare A B`, `samestep runs remove RUN ...`.

Torch is not imported, so the answer comes immediately.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samestep.cli.args import all_of
from samestep.cli.help import asks_for_help
from samestep.core.config import split_options
from samestep.core.console import PlainConsole
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.output import is_terminal, plural, print_text
from samestep.core.pages.tables import Table
from samestep.core.rundir import RunDir
from samestep.report.compare import compare_runs
from samestep.report.removal import remove_run
from samestep.report.run_report import read_report
from samestep.report.run_summary import find_runs, read_summary
from samestep.report.runs_table import COLUMNS, chosen, facts, runs_table
from samestep.train.record.run_record import find_run

HELP = f"""samestep runs [FOLDER ...] [--sort COLUMN] [--filter CONDITION] [--json]
samestep runs compare RUN RUN [RUN ...] [--json]
samestep runs remove RUN ... [--yes]

Lists the runs of folders (runs/ without one), the one that changed last first. A state `killed` means that the run says
that it is running, and is not: samestep why RUN says more.

--sort      a column, with - in front the other way round: {", ".join(COLUMNS)}
--filter    a word that is in the name, the recipe or the state; or a condition on a column, such as state=failed or
            best<2.5. May be given several times
--json      everything as JSON

compare shows the settings that differ, the metrics side by side, and the first step at which they differ.

remove asks before it removes, or takes --yes. A run that is running, or that another run in the same folder refers to
(init_from, a teacher, a frozen network), is never removed."""


def run(args: Sequence[str]) -> int:
    """List, compare or remove."""
    if asks_for_help(args):
        print_text(HELP)
        return EXIT_DONE
    if args[:1] == ["compare"]:
        return _compare(args[1:])
    if args[:1] == ["remove"]:
        return _remove(args[1:])
    return _list(args)


def _list(args: Sequence[str]) -> int:
    filters, args = all_of("filter", args, "runs")
    options, folders = _split(args, ["sort"], ["json"], "samestep runs [FOLDER ...] [--sort COLUMN] [--filter ...]")
    if not folders and not Path("runs").exists():
        raise UserError("there is no folder runs here; name the folder that has the runs: samestep runs FOLDER")
    found = [facts(read_summary(rundir)) for folder in folders or ["runs"] for rundir in find_runs(Path(folder))]
    shown = chosen(found, filters, options.get("sort", "age"))
    if "json" in options:
        print_text(json.dumps(shown, indent=2, ensure_ascii=False))
        return EXIT_DONE
    if shown:
        _print_table(runs_table(shown))
    left = f" of {len(found)}" if len(shown) < len(found) else ""
    print_text(f"{plural(len(shown), 'run')}{left}")
    for each in shown:
        for file, why in each["damage"].items():
            print_text(f"{each['path']}: {file}: {why}")
    return EXIT_DONE


def _compare(args: Sequence[str]) -> int:
    options, names = _split(args, [], ["json"], "samestep runs compare RUN RUN [RUN ...] [--json]")
    if len(names) < 2:
        raise UserError("name two runs or more: samestep runs compare RUN RUN [RUN ...]")
    found = compare_runs([read_report(find_run(name, damaged=True)) for name in names])
    if "json" in options:
        print_text(json.dumps(found.to_json(), indent=2, ensure_ascii=False))
        return EXIT_DONE
    for table in found.tables():
        _print_table(table)
    for sentence in found.sentences:
        print_text(sentence)
    return EXIT_DONE


def _remove(args: Sequence[str]) -> int:
    options, names = _split(args, [], ["yes"], "samestep runs remove RUN ... [--yes]")
    if not names:
        raise UserError("name the runs to remove: samestep runs remove RUN ... [--yes]")
    found = [find_run(name, damaged=True) for name in dict.fromkeys(names)]
    sizes = sum(read_summary(rundir).size for rundir in found)
    if "yes" not in options and not _agrees(found, sizes):
        return EXIT_DONE
    for rundir in found:
        folder = rundir.path.absolute().parent
        remove_run(rundir, find_runs(folder))
        print_text(f"removed {rundir.path}")
    return EXIT_DONE


def _print_table(table: Table) -> None:
    """Drawn on a terminal; as plain lines, however long, for a file or a pipe."""
    if is_terminal(sys.stdout):
        PlainConsole().print(table.drawn())
    else:
        print_text(table.text())


def _agrees(found: Sequence[RunDir], size: int) -> bool:
    """Whether the user says yes; nothing is removed where nobody can be asked."""
    if not is_terminal(sys.stdin):
        raise UserError("nothing is removed unasked; add --yes")
    names = ", ".join(str(rundir.path) for rundir in found)
    print_text(f"remove {names} ({size / 1e6:,.1f} MB)? y/N ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _split(
    args: Sequence[str], options: Sequence[str], flags: Sequence[str], command: str
) -> tuple[dict[str, Any], list[str]]:
    """Options and names; refuses what is neither."""
    given, names = split_options(args, options, flags)
    unknown = [name for name in names if name.startswith("-")]
    if unknown:
        raise UserError(f"there is no option {unknown[0]}; the command is: {command}")
    return given, names
