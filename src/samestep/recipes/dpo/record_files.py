"""What is wrong with the records of a file: all of it at once, or what is left out, counted."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from samestep import UserError
from samestep.core.paths import expand_home
from samestep.data.json_records import json_records

FamilyName = Literal["protein", "text"]
SHOWN = 20
"""How many problems are listed one by one; the others are counted by their kind."""
_COLUMNS: Mapping[str, FamilyName] = {"pdb_file": "protein", "prompt": "text", "chosen": "text", "rejected": "text"}


@dataclass(frozen=True)
class Problem:
    """What is wrong with a record."""

    record: int
    """The record's number in its file, from 1."""
    where: str
    about: str
    text: str


def leave_out(file: Path, problems: Sequence[Problem], total: int, valid: int, skip_invalid: bool) -> dict[str, int]:
    """Refuse a file with problems, or count the records that are left out, each by its first problem."""
    if problems and not (skip_invalid and valid):
        raise UserError(_report(file, problems, total, skip_invalid))
    firsts = {problem.record: problem.about for problem in reversed(problems)}
    return dict(sorted(Counter(firsts.values()).items()))


def selection(file: Path, kept: int, total: int, left_out: Mapping[str, int]) -> str:
    """How many records there are, and why others were left out."""
    why = ", ".join(f"{count} because of {about}" for about, count in left_out.items())
    return f"{kept} of {total} records of {file}" + (f"; left out: {why}" if why else "")


def _report(file: Path, problems: Sequence[Problem], total: int, skip_invalid: bool) -> str:
    """All problems: the first ones line by line, the others counted."""
    wrong = len({problem.record for problem in problems})
    if skip_invalid:
        head = f"Give records that can be used; none of the {total} of {file} can:"
    else:
        head = f"Fix {wrong} of {total} records of {file}, or leave them out with skip_invalid=true:"
    lines = [f"  {problem.where}: {problem.text}" for problem in problems[:SHOWN]]
    if rest := Counter(problem.about for problem in problems[SHOWN:]):
        counted = ", ".join(f"{count} about {about}" for about, count in sorted(rest.items()))
        lines.append(f"  and {sum(rest.values())} more problems: {counted}")
    return "\n".join([head, *lines])


def family_of(path: str) -> FamilyName:
    """What kind of records a file holds, by the columns of the first one that has any of them."""
    file = expand_home(path)
    columns = [list(value) for _, value in json_records(file) if isinstance(value, dict)]
    for column in (name for names in columns for name in names):
        if column in _COLUMNS:
            return _COLUMNS[column]
    raise UserError(
        f"Give {path} the columns pdb_file, preferred_seq, unpreferred_seq (proteins) or prompt, chosen, rejected "
        f"(texts); its first record has {', '.join(map(repr, columns[0])) if columns else 'none'}."
    )
