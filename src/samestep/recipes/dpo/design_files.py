"""The structures that `samestep sample` designs sequences for, and the files that these are written to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from samestep import UserError
from samestep.core.errors import print_error
from samestep.core.paths import expand_home
from samestep.core.records import Json
from samestep.recipes.dpo.designs import Design, DesignError, check_length, choose_design
from samestep.recipes.dpo.protein_family import cache_folder
from samestep.recipes.dpo.record_files import Problem, leave_out, selection
from samestep.recipes.dpo.sample_options import SampleOptions
from samestep.recipes.dpo.structure_cache import read_structure

_FIELDS = ("design_chains", "fixed_chains", "mutable_positions", "mutable_ranges")


@dataclass(frozen=True)
class NamedDesign:
    """A design, with the file that it comes from and those that its sequences go to."""

    file: Path
    design: Design
    folder: Path
    name: str
    """The name of its files, which no other design has."""

    @property
    def length(self) -> int:
        """Residues that the network sees."""
        return sum(map(len, self.design.chains))

    @property
    def json_file(self) -> Path:
        """All about its sequences."""
        return self.folder / f"{self.name}.json"

    @property
    def fasta_file(self) -> Path:
        """Only the sequences."""
        return self.folder / f"{self.name}.fa"

    def by_chain(self, letters: str) -> dict[str, str]:
        """The letters of each design chain; `letters` begin with those of all design chains."""
        found, start = {}, 0
        for chain in self.design.design_chains:
            found[chain.id] = letters[start : start + len(chain)]
            start += len(chain)
        return found

    def about(self) -> dict[str, Json]:
        """What was designed, for its JSON file."""
        return {
            "pdb_file": str(self.file),
            "sha256": self.design.structure.sha256,
            "design_chains": [chain.id for chain in self.design.design_chains],
            "fixed_chains": [chain.id for chain in self.design.fixed_chains],
            "designed_positions": np.flatnonzero(_designed(self.design)).tolist(),
            "native": "/".join(self.by_chain(self.design.native).values()),
        }


def read_designs(options: SampleOptions, max_length: int, skip_invalid: bool) -> list[NamedDesign]:
    """Read and check every structure that is named; the same on every rank."""
    fields = {name: getattr(options, name) for name in _FIELDS if getattr(options, name) is not None}
    files = [expand_home(options.pdb_file)] if options.pdb_file else list(_listed(options.pdb_list or Path()))
    found: list[tuple[Path, Design]] = []
    problems: list[Problem] = []
    for number, file in enumerate(files, start=1):
        try:
            found.append((file, _design(file, fields, max_length)))
        except DesignError as problem:
            problems.append(Problem(number, str(file), problem.about, str(problem)))
        except UserError as problem:
            problems.append(Problem(number, str(file), "file", str(problem).rstrip(".")))
    if options.pdb_list is None and problems:
        is_named = str(files[0]) in problems[0].text
        raise UserError(f"{problems[0].text}." if is_named else f"{files[0]} does not fit: {problems[0].text}.")
    if options.pdb_list is not None:
        left_out = leave_out(options.pdb_list, problems, len(files), len(found), skip_invalid)
        if left_out:
            print_error(selection(options.pdb_list, len(found), len(files), left_out))
    names = _names([file for file, _ in found])
    return [NamedDesign(file, design, options.folder, name) for (file, design), name in zip(found, names, strict=True)]


def make_folder(folder: Path) -> None:
    """Make the folder of the designs, before the first of them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"Give --output_dir a folder; {folder} cannot be one: {problem.strerror}.") from None


def _listed(path: Path) -> Iterator[Path]:
    """The paths in a file, one on each line: from its folder, or from the working directory."""
    try:
        lines = expand_home(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError):
        raise UserError(f"Give --pdb_list a text file with one path on each line; {path} cannot be read.") from None
    wanted = [line.strip() for line in lines if line.strip()]
    if not wanted:
        raise UserError(f"Put at least one path into {path}; it is empty.")
    for line in wanted:
        beside = expand_home(path).parent / expand_home(line)
        yield beside if beside.is_file() else expand_home(line)


def _design(file: Path, fields: dict[str, str], max_length: int) -> Design:
    design = choose_design(read_structure(file, cache_folder() / "structures"), fields)
    check_length(design, max_length)
    if not _designed(design).any():
        raise DesignError(
            "positions", "no position is left to design: none that may change has all of N, CA, C and O; name others"
        )
    return design


def _designed(design: Design) -> np.ndarray:
    """[design residues], bool: where letters are sampled. Unlike in training, an unknown letter is no hindrance."""
    resolved: np.ndarray = np.concatenate([chain.resolved for chain in design.design_chains])
    return design.mutable & resolved


def _names(files: Sequence[Path]) -> list[str]:
    """The names of files without their endings; of equal ones, all but the first get a number."""
    names: list[str] = []
    for file in files:
        stem = Path(file.name.removesuffix(".gz")).stem
        more = (f"{stem}_{number}" for number in range(2, len(files) + 2))
        names.append(stem if stem not in names else next(name for name in more if name not in names))
    return names
