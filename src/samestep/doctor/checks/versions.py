"""The same Python, torch, CUDA, driver and NCCL on every rank, and the same code of samestep."""

import hashlib
import platform
import re
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

import samestep
from samestep.doctor.check import Check, Fact
from samestep.doctor.findings import Finding, RankReports, failed, listed, named, odd_ones, ok
from samestep.doctor.rendezvous import CheckContext

_DRIVER = Path("/proc/driver/nvidia/version")
_CODE = (".py", ".yaml", ".html")


def measure(seat: CheckContext) -> Fact:
    """The versions here, and a mark of every file of the package."""
    return {"versions": versions(), "files": marks(Path(samestep.__file__).parent)}


def versions() -> dict[str, str]:
    """What matters for whether ranks understand each other; empty where there is none."""
    has_nccl = dist.is_nccl_available() and torch.cuda.is_available()
    return {
        "Python": platform.python_version(),
        "torch": str(torch.__version__),
        "CUDA": torch.version.cuda or "",
        "driver": driver(_DRIVER),
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else "",
    }


def driver(path: Path) -> str:
    """The version of NVIDIA's driver, as the kernel tells it; empty without one."""
    try:
        found = re.search(r"\b(\d{3}\.\d+(\.\d+)?)\b", path.read_text())
    except OSError:
        return ""
    return found[1] if found else "unknown"


def marks(package: Path) -> dict[str, str]:
    """A short mark of the content of each file of a package, by its path inside."""
    files = sorted(path for path in package.rglob("*") if path.suffix in _CODE)
    return {str(p.relative_to(package)): hashlib.sha256(p.read_bytes()).hexdigest()[:8] for p in files}


def judge(reports: RankReports) -> list[Finding]:
    """Versions, then code."""
    return [_same_versions(reports), _same_code(reports)]


def _same_versions(reports: RankReports) -> Finding:
    name = "versions"
    usual: dict[str, str] = {}
    wrong = []
    for what in reports[0].fact["versions"]:
        value, odd = odd_ones(reports, {report.rank: report.fact["versions"][what] for report in reports})
        usual[what] = str(value)
        if odd:
            found = " or ".join(sorted({report.fact["versions"][what] or "none" for report in odd}))
            wrong.append(f"{named(odd)} with {what} {found} instead of {value or 'none'}")
    if wrong:
        return failed(name, f"{listed(wrong)}: another environment is active there; activate the same one on all hosts")
    return ok(name, ", ".join(f"{what} {value or 'none'}" for what, value in usual.items()))


def _same_code(reports: RankReports) -> Finding:
    name = "samestep's code"
    files: dict[int, Mapping[str, str]] = {report.rank: report.fact["files"] for report in reports}
    whole = {rank: fingerprint(found) for rank, found in files.items()}
    usual, odd = odd_ones(reports, whole)
    if not odd:
        return ok(name, f"{len(files[reports[0].rank])} files, fingerprint {usual}, equal on all ranks")
    expected = files[next(rank for rank, known in whole.items() if known == usual)]
    found = files[odd[0].rank]
    differing = sorted(path for path in {*expected, *found} if expected.get(path) != found.get(path))
    more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
    return failed(
        name,
        f"{named(odd)} has other code in {differing[0]}{more}: an older copy or another environment; install the same "
        "version on all hosts, or use one shared folder",
    )


def fingerprint(files: Mapping[str, str]) -> str:
    """One mark for all files."""
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]


EXAM = Check("versions", measure, judge, "the disk that samestep is installed on does not answer; look at its mount")
