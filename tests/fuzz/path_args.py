"""Every place on a command line where a path or a name is expected, with what is neither.

A file where a folder is meant, a folder where a file is meant, names that no file can have, files of another kind.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzz.command import call
from fuzz.run_files import DEEP, TRAIN
from fuzz.trial import Trial, judged

ONE_STEP = [*TRAIN.split(), "--max_steps", "1", "--name", "b"]
MARK = "@"
"""Where the careless argument goes."""


@dataclass(frozen=True)
class Place:
    """A command with one argument to be replaced."""

    command: str
    is_needed: bool = False
    """Whether the command must refuse everything that is not what it means."""

    def args(self, value: str) -> list[str]:
        """The command line."""
        start = ONE_STEP if self.command.startswith("TRAIN") else []
        return [*start, *(part.replace(MARK, value) for part in self.command.removeprefix("TRAIN").split())]


PLACES = (
    Place("why @", True),
    Place("why @ --json", True),
    Place("checkpoints @", True),
    Place("checkpoints @ --verify", True),
    Place("sample @ --prompt x", True),
    Place("sample a --prompts @", False),
    Place("sample a --prompt @"),
    Place("sample a --prompt x --out @"),
    Place("sample a --recipe @", True),
    Place("sample a --stage @", True),
    Place("sample a --which @", True),
    Place("evaluate @ --tasks x", True),
    Place("export @ out", True),
    Place("export a @"),
    Place("export a @ --weights"),
    Place("export a @/deeper"),
    Place("train --resume @", False),
    Place("train --resume a --recipe @", True),
    Place("train @", True),
    Place("verify @", True),
    Place("config @", True),
    Place("@", True),
    Place("TRAIN --init_from @", False),
    Place("TRAIN --stages_from @", True),
    Place("TRAIN --data.path @"),
    Place("TRAIN --config @", True),
    Place("TRAIN --config-path @", True),
    Place("TRAIN --config-path @ --config-name x", True),
    Place("TRAIN --config-name @", True),
    Place("TRAIN --name @"),
    Place("TRAIN --out @"),
    Place("TRAIN --preset @", True),
    Place("TRAIN --tokenizer @"),
    Place("data prepare @ --out prepared"),
    Place("data prepare text.txt --out @"),
    Place("data prepare text.txt --out prepared --tokenizer @", True),
    Place("data prepare shakespeare --from @ --out prepared"),
    Place("submit mdlm --on local --dry-run --name @"),
    Place("submit mdlm --on slurm --dry-run --site @", True),
    Place("submit --resume @ --on slurm --dry-run", True),
    Place("train dpo --preset verify --max_steps 1 --data.path @"),
    Place("train gan --preset verify --max_steps 1 --data.path @"),
    Place("train lens --preset verify --max_steps 1 --data.path @"),
    Place("train distill --preset verify --max_steps 1 --data.path @"),
)

Make = Callable[[Path], object]
VALUES: dict[str, Make | None] = {
    "file.txt": lambda path: path.write_text("some text\n"),
    "empty": lambda path: path.write_bytes(b""),
    "bytes.bin": lambda path: path.write_bytes(bytes(range(256)) * 9),
    "folder": lambda path: path.mkdir(),
    "missing": None,
    "file.txt/below": None,
    "n" * 300: None,
    "p/" * 3000: None,
    "\udcff": None,
    "a[/b]": None,
    "-5": None,
    "..": None,
    "keys.pt": lambda path: torch.save({1: torch.zeros(2), 2: torch.ones(2)}, path),
    "list.pt": lambda path: torch.save([torch.zeros(2)], path),
    "text.pt": lambda path: path.write_text("no weights"),
    "deep.json": lambda path: path.write_bytes(DEEP),
    "deep.jsonl": lambda path: path.write_bytes(DEEP + b"\n"),
    "list.json": lambda path: path.write_text("[1, [], {}]"),
    "deep.yaml": lambda path: path.write_bytes(DEEP),
    "bad.safetensors": lambda path: path.write_bytes(b"\xff" * 64),
    "secret": lambda path: (path.write_text("x"), path.chmod(0)),
    "closed": lambda path: path.mkdir(mode=0),
}


class PathArgs:
    """A folder with a run `a` and everything that the values name."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        self._intact = folder / "intact"
        self._intact.mkdir(parents=True)
        made = call([*TRAIN.split(), "--max_steps", "1"], self._intact)
        assert made.code == 0, made.output
        (self._intact / "text.txt").write_text("The rain in Spain stays mainly in the plain.\n" * 400)

    def trial(self, place: Place, value: str) -> Trial:
        """One command line."""
        self._number += 1
        folder = Path(shutil.copytree(self._intact, self._folder / str(self._number)))
        for name, make in VALUES.items():
            if make is not None:
                make(folder / name)
        args = place.args(value)
        result = call(args, folder)
        (folder / "closed").chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)
        label = " ".join(arg if len(arg) < 60 else f"{arg[:20]}..." for arg in args)
        is_right = result.code != 0 or not place.is_needed
        return judged("paths and names", repr(label), result, is_right=is_right)


def trials(folder: Path, count: int | None, rng: random.Random) -> Iterator[Trial]:
    """So many of all places with all values, in a random order."""
    cases = [(place, value) for place in PLACES for value in VALUES]
    rng.shuffle(cases)
    made = PathArgs(folder)
    for place, value in cases[:count]:
        yield made.trial(place, value)
