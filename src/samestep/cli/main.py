"""The command `samestep`: finds the verb, runs it, and turns errors into sentences and exit codes.

Nothing heavy is imported here, so `samestep --help` answers immediately.
"""

import importlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from samestep.core.child_python import leave_out_working_directory
from samestep.core.compile_caches import use_private_caches
from samestep.core.disk_space import describe_full_disk, is_disk_full
from samestep.core.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_USER, RunFailed, UserError, path_error, print_error
from samestep.core.imports import uncollected_imports
from samestep.core.interrupt import exit_interrupted
from samestep.core.near_names import did_you_mean
from samestep.core.open_files import is_too_many_files, raise_limit, require_open_files, too_many_open_files
from samestep.core.output import open_closed_streams, print_safely, print_text

VERBS = {
    "train": "train a recipe, or resume a run",
    "submit": "train as a job of SLURM or PBS",
    "verify": "prove that a recipe is the same run at any world size and after a kill",
    "sample": "generate from a trained run",
    "evaluate": "evaluate a trained run, as its recipe does (also: eval)",
    "export": "write the weights of a trained run as safetensors, or in the recipe's published format",
    "data": "turn text into memory-mapped token files for training",
    "checkpoints": "list the checkpoints of a run, and check them",
    "why": "explain what happened to a run",
    "watch": "show a run in the terminal while it trains: curves, ranks, time left",
    "report": "show runs on one HTML page: curves, speeds, samples, settings, events",
    "runs": "list runs, compare them, remove them",
    "doctor": "check the machines, alone or as the ranks of a launcher",
    "new": "make a project folder for a recipe, or for one of your own",
    "recipes": "list the recipes, with one line each",
    "config": "print every setting of a recipe with type, default and meaning",
    "completion": "print a script with which bash, zsh or fish completes names",
}
HELP_WORDS = ("-h", "--help", "help")
OTHER_NAMES = {"eval": "evaluate"}
_MAY_COMPILE = ("train", "verify", "sample", "evaluate", "export", "doctor")
_NOISY = ("torchao", "torch.utils._pytree")
"""transformers imports torchao where it is installed, which then warns about parts of its own that nobody uses here."""

SHORT = """samestep: the same run, step for step, on any number of devices

  samestep recipes                      what there is to train
  samestep train RECIPE --preset tiny   train it, small
  samestep VERB --help                  how a verb is used
  samestep --help                       all verbs: """

USAGE = """samestep: the same run, step for step, on any number of devices

  samestep train RECIPE [--preset NAME] [key=value | --key value ...]
  samestep train --resume RUN
  samestep submit RECIPE --on slurm --nodes N --gpus-per-node G
  samestep verify RECIPE
  samestep sample RUN|CHECKPOINT|FOLDER [--prompt TEXT]
  samestep export RUN FOLDER
  samestep data prepare FILE ... --out FOLDER
  samestep checkpoints RUN [--verify]
  samestep why RUN
  samestep watch RUN
  samestep report RUN [RUN ...]
  samestep runs [FOLDER ...]
  samestep doctor [--test basic|ddp|all]
  samestep recipes
  samestep config RECIPE
  samestep new RECIPE FOLDER

`samestep VERB --help` says what a verb takes.

verbs:
"""


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line, in a process that is there for it; returns its exit code."""
    sys.excepthook = sys.__excepthook__  # from here on Ctrl-C is caught below
    closed = open_closed_streams()
    if "standard output" in closed:
        print_safely("samestep: standard output is closed, so nothing is printed there", sys.stderr)
    _protect_imports()
    words = list(sys.argv[1:] if args is None else args)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        code = _run(words)
        sys.stdout.flush()  # here, where it is caught that nobody reads any more
        return code
    except KeyboardInterrupt:
        print_error("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except UserError as error:
        print_error(str(error))
        return EXIT_USER
    except RunFailed as error:  # by a verb that has no ranks, which would have said so
        refused = path_error(error.__cause__) if error.__cause__ else None
        print_error(str(refused or error))
        return EXIT_USER if refused else error.exit_code
    except (OSError, ImportError, RuntimeError) as error:
        if is_too_many_files(error):
            sentence = str(too_many_open_files())
        elif is_disk_full(error):
            sentence = f"{describe_full_disk(error, Path.cwd())}; free some space there, and try again"
        elif refused := path_error(error):
            sentence = str(refused)
        else:
            raise
        print_error(sentence)
        return EXIT_USER


def _run(words: Sequence[str]) -> int:
    if not words:
        print_text(SHORT + ", ".join(VERBS))
        return EXIT_DONE
    verb, *rest = words
    if verb == "help" and rest:  # as git has it
        verb, rest = rest[0], ["--help"]
    if verb in HELP_WORDS:
        print_text(USAGE + "\n".join(f"  {name:12} {meaning}" for name, meaning in VERBS.items()))
        return EXIT_DONE
    if verb in ("--version", "-V"):
        from importlib.metadata import version

        print_text(version("samestep"))
        return EXIT_DONE
    return _run_verb(OTHER_NAMES.get(verb, verb), rest)


def _run_verb(verb: str, rest: Sequence[str]) -> int:
    _refuse_undecoded([verb, *rest])
    if verb not in VERBS:
        raise UserError(_no_verb(verb))
    _require_working_directory()
    if verb in _MAY_COMPILE:
        raise_limit()
        require_open_files(0, f"samestep {verb}")
        use_private_caches()
    with uncollected_imports(), _exiting_on_interrupt():
        module = importlib.import_module(f"samestep.cli.{verb}")
    return int(module.run(rest))


def _no_verb(verb: str) -> str:
    from samestep.cli.recipes import recipe_lines

    if verb in recipe_lines():
        return f"{verb} is a recipe; to train it, write: samestep train {verb}"
    return f"there is no verb {verb!r}{did_you_mean(verb, VERBS)}; choose one of {', '.join(VERBS)}"


@contextmanager
def _exiting_on_interrupt() -> Iterator[None]:
    """While a verb and its libraries are imported, Ctrl-C ends the process with a sentence."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored on purpose, or not ours
        yield
        return
    signal.signal(signal.SIGINT, exit_interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _require_working_directory() -> None:
    """Every path that is not absolute, and Python itself, depend on it."""
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(
            f"the working directory was deleted ({error.strerror}); change to a folder that exists"
        ) from None


def _protect_imports() -> None:
    for folder in leave_out_working_directory():
        sentence = f"PYTHONPATH names {folder!r}, which depends on the working directory and is left out"
        print_safely(f"samestep: {sentence}; write the full path", sys.stderr)


def _refuse_undecoded(args: Sequence[str]) -> None:
    """Refuse bytes that are no text: they could be written into no file of a run."""
    for arg in args:
        try:
            arg.encode()
        except UnicodeEncodeError:
            raise UserError(f"{arg!r} is not text in UTF-8; write it in UTF-8, or rename the file") from None
