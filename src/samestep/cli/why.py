"""`samestep why RUN [--json]`: what happened to a run, the evidence for it, and the next command.

Only files are read and nothing is locked, so a live run is not disturbed. Torch is not imported, so the answer comes
immediately.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from samestep.cli.args import parse_run
from samestep.cli.help import asks_for_help
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.output import print_text
from samestep.core.rundir import RunDir
from samestep.train.record.run_record import find_run
from samestep.why.collect import collect_evidence
from samestep.why.diagnose import diagnose
from samestep.why.records import VERDICTS
from samestep.why.report import as_json, as_text

HELP = """samestep why RUN [--json]

Explains what happened to a run: the verdict, the evidence for it with the files it comes from, and the next command to
type. It works on any machine that sees the run directory, also while the run is active. With --json the same as one
JSON object.

verdicts:
"""


def run(args: Sequence[str]) -> int:
    """Explain a run; 0 whenever there is a verdict, whatever it is."""
    if not args or asks_for_help(args):
        print_text(HELP + "\n".join(f"  {name:14} {meaning}" for name, meaning in VERDICTS.items()))
        return EXIT_DONE
    name, options = parse_run(args, "samestep why RUN [--json]", flags=["json"])
    evidence = collect_evidence(_find(name))
    finding = diagnose(evidence)
    if "json" in options:
        print_text(json.dumps(as_json(evidence, finding), indent=2, ensure_ascii=False))
    else:
        print_text(as_text(evidence, finding))
    return EXIT_DONE


def _find(text: str) -> RunDir:
    """The run of this name; also one that was submitted and has not begun."""
    try:
        return find_run(text, damaged=True)
    except UserError:
        for path in (Path(text), Path("runs") / text):
            if (RunDir(path).job / "job.json").exists():
                return RunDir(path)
        raise
