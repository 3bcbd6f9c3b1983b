"""Compares what the stages of two runs left on the disk: arrays and JSON by content, other files by their names."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from samestep.core.json_files import Json, read_json
from samestep.core.output import plural
from samestep.core.rundir import DONE, RunDir
from samestep.train.artifacts.array_format import LAYOUT
from samestep.verify.report import apply_floor
from samestep.verify.tolerance import CheckResult, Floor, ProofStatus, distance


@dataclass
class ArtifactComparison:
    """What was compared, and the first difference."""

    files: int = 0
    """Files whose content was compared."""
    others: int = 0
    """Files of other formats, of which only the names were compared."""
    largest: float = 0.0
    difference: str = ""


def compare_artifacts(ours: Path, theirs: Path, tolerance: float | None = None) -> ArtifactComparison:
    """Compare the artifacts of two run directories; without a tolerance every bit counts.

    An array of few bits may differ by its own rounding, too.
    """
    found = ArtifactComparison()
    mine, other = _files(ours), _files(theirs)
    for name in sorted({*mine, *other}):
        if name not in mine or name not in other:
            found.difference = f"the artifact {name} is in one of both runs only"
        elif name.endswith((".npy", ".json")):
            found.files += 1
            compare = _compare_arrays if name.endswith(".npy") else _compare_json
            found.difference = compare(name, mine[name], other[name], tolerance, found)
        else:
            found.others += 1
        if found.difference:
            return found
    return found


def artifacts_checks(one_rank: Path, runs: Mapping[int, Path], floor: Floor) -> list[CheckResult]:
    """The check of the artifacts of `runs`, by world size, against those of a run at one rank; none where no stage
    left any."""
    name, most, content = "artifacts at 1, 2, 3 ranks", 0.0, ArtifactComparison()
    for world, path in runs.items():
        content = compare_artifacts(one_rank, path, floor.tolerance("losses"))
        if content.difference:
            return [CheckResult(name, ProofStatus.FAILED, f"{content.difference} at 1 and {world} ranks")]
        most = max(most, content.largest)
    if not content.files and not content.others:
        return []
    others = f"; {plural(content.others, 'other file')} by name" if content.others else ""
    sentence = f"{plural(content.files, 'file')}, largest difference {most:.1e}{others}"
    return [apply_floor(floor, {"losses": most}, CheckResult(name, ProofStatus.OK, sentence))]


def _files(run: Path) -> dict[str, Path]:
    """The files of all stages by name; not those that the runtime itself writes."""
    folder = RunDir(run).artifacts("")
    names = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path for name, path in names.items() if "/." not in f"/{name}" and path.name not in (DONE, LAYOUT)}


def _compare_arrays(name: str, ours: Path, theirs: Path, tolerance: float | None, found: ArtifactComparison) -> str:
    a, b = (np.load(path, mmap_mode="r") for path in (ours, theirs))
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"the array {name} is {a.dtype} {list(a.shape)} in one run and {b.dtype} {list(b.shape)} in the other"
    different = _different(a, b)
    if not different.any():
        return ""
    row = int(np.flatnonzero(different.reshape(len(a), -1).any(1))[0]) if a.ndim else 0
    where = f"row {row} of the array {name} differs"
    if tolerance is None or not np.issubdtype(a.dtype, np.floating):
        return where
    apart = np.abs(a.astype(np.float64) - b.astype(np.float64)).max() / max(np.abs(a).max(), np.finfo(a.dtype).tiny)
    found.largest = max(found.largest, float(apart))
    allowed = max(tolerance, 2 * float(np.finfo(a.dtype).eps))
    return "" if apart <= allowed else f"{where}; the largest difference in it is {apart:.1e}"


def _different(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which values differ; NaN equals itself."""
    return (a != b) & ~((a != a) & (b != b))


def _compare_json(name: str, ours: Path, theirs: Path, tolerance: float | None, found: ArtifactComparison) -> str:
    a, b = (read_json(path) for path in (ours, theirs))
    where = _differing_value(a, b, tolerance, found)
    return "" if where is None else f"the artifact {name} differs" + (f" at {where}" if where else "")


def _differing_value(
    a: Json, b: Json, tolerance: float | None, found: ArtifactComparison, where: str = ""
) -> str | None:
    """Where the first value differs, as `rows.3`; None when none does."""
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        pairs: Sequence[tuple[str, Json, Json]] = [(key, a[key], b[key]) for key in a]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = [(str(number), *pair) for number, pair in enumerate(zip(a, b))]
    else:
        return None if _same_value(a, b, tolerance, found) else where
    each = (_differing_value(x, y, tolerance, found, f"{where}.{key}".lstrip(".")) for key, x, y in pairs)
    return next((place for place in each if place is not None), None)


def _same_value(a: Json, b: Json, tolerance: float | None, found: ArtifactComparison) -> bool:
    if tolerance is not None and isinstance(a, float) and isinstance(b, float):
        apart = distance(a, b)
        found.largest = max(found.largest, apart)
        return apart <= tolerance
    return json.dumps(a) == json.dumps(b)
