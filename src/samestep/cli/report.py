"""`samestep report RUN [RUN ...] [--out FILE]`: runs as one HTML file that opens from disk."""

from collections.abc import Sequence
from pathlib import Path

from samestep.cli.help import asks_for_help
from samestep.core.config import split_options
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.output import print_text
from samestep.report.html_report import write_report
from samestep.train.record.run_record import find_run

HELP = """samestep report RUN [RUN ...] [--out FILE]

Writes one HTML file with the curves, speeds, samples, settings and events of a run, or of several over each other. It
opens from disk in any browser, and needs nothing else; nothing is uploaded. The run may be in progress. Without --out
it is written to report.html in the run, for several runs to report.html in this folder."""


def run(args: Sequence[str]) -> int:
    """Write the page."""
    if not args or asks_for_help(args):
        print_text(HELP)
        return EXIT_DONE
    options, names = split_options(args, ["out"])
    unknown = [name for name in names if name.startswith("-")]
    if unknown or not names:
        what = f"there is no option {unknown[0]}" if unknown else "name a run"
        raise UserError(f"{what}; the command is: samestep report RUN [RUN ...] [--out FILE]")
    runs = [find_run(name, damaged=True) for name in dict.fromkeys(names)]
    out = write_report(runs, Path(options["out"]) if "out" in options else None)
    print_text(f"{out} ({out.stat().st_size / 1e6:.1f} MB)")
    return EXIT_DONE
