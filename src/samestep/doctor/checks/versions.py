"""The same Python, torch, CUDA, driver and NCCL on every rank, and the same code of samestep."""

import hashlib
import platform
import re
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

import samestep
from samestep.doctor.check import Check
from samestep.doctor.findings import Finding, Measured, RankReports, describe_ranks, failed, join_list, ok, outliers
from samestep.doctor.rendezvous import CheckContext

_DRIVER = Path("/proc/driver/nvidia/version")
_CODE = (".py", ".yaml", ".css", ".js")


def measure(context: CheckContext) -> Measured:
    """The versions here, and a hash of every file of the package."""
    return {"versions": versions(), "files": file_hashes(Path(samestep.__file__).parent)}


def versions() -> dict[str, str]:
    """The versions that must match between ranks; empty where something is not installed."""
    has_nccl = dist.is_nccl_available() and torch.cuda.is_available()
    return {
        "Python": platform.python_version(),
        "torch": str(torch.__version__),
        "CUDA": torch.version.cuda or "",
        "driver": driver(_DRIVER),
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else "",
    }


def driver(path: Path) -> str:
    """The version of NVIDIA's driver, as the kernel reports it; empty without one."""
    try:
        found = re.search(r"\b(\d{3}\.\d+(\.\d+)?)\b", path.read_text())
    except OSError:
        return ""
    return found[1] if found else "unknown"


def file_hashes(package: Path) -> dict[str, str]:
    """A short hash of each file of a package, by its path inside."""
    files = sorted(path for path in package.rglob("*") if path.suffix in _CODE)
    return {str(p.relative_to(package)): hashlib.sha256(p.read_bytes()).hexdigest()[:8] for p in files}


def compare(reports: RankReports) -> list[Finding]:
    """Versions, then code."""
    return [_same_versions(reports), _same_code(reports)]


def _same_versions(reports: RankReports) -> Finding:
    name = "versions"
    usual: dict[str, str] = {}
    wrong = []
    for what in reports[0].measured["versions"]:
        value, odd = outliers(reports, {report.rank: report.measured["versions"][what] for report in reports})
        usual[what] = str(value)
        if odd:
            found = " or ".join(sorted({report.measured["versions"][what] or "none" for report in odd}))
            wrong.append(f"{describe_ranks(odd)} with {what} {found} instead of {value or 'none'}")
    if wrong:
        return failed(
            name, f"{join_list(wrong)}: another environment is active there; activate the same one on all hosts"
        )
    return ok(name, ", ".join(f"{what} {value or 'none'}" for what, value in usual.items()))


def _same_code(reports: RankReports) -> Finding:
    name = "samestep's code"
    files: dict[int, Mapping[str, str]] = {report.rank: report.measured["files"] for report in reports}
    fingerprints = {rank: fingerprint(found) for rank, found in files.items()}
    usual, odd = outliers(reports, fingerprints)
    if not odd:
        return ok(name, f"{len(files[reports[0].rank])} files, fingerprint {usual}, equal on all ranks")
    expected = files[next(rank for rank, known in fingerprints.items() if known == usual)]
    found = files[odd[0].rank]
    differing = sorted(path for path in {*expected, *found} if expected.get(path) != found.get(path))
    more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
    return failed(
        name,
        f"{describe_ranks(odd)} has other code in {differing[0]}{more}: an older copy or another environment; install "
        "the same version on all hosts, or use one shared folder",
    )


def fingerprint(files: Mapping[str, str]) -> str:
    """One hash for all files."""
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]


CHECK = Check("versions", measure, compare, "the disk that samestep is installed on does not answer; look at its mount")
