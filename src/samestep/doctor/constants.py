"""What was measured, kept for later planning: one file of all machines, each under its hosts, devices and ranks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from samestep.core.records import Json, read_json, write_json
from samestep.doctor.checks import copies, disk, group, speed, stragglers
from samestep.doctor.findings import Finding, RankReports

FORMAT = 1


def default_path(env: Mapping[str, str]) -> Path:
    """Where constants are kept."""
    cache = env.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "samestep" / "machine.json"


def machine_key(hosts: Sequence[str], kind: str) -> str:
    """What tells one layout from another: `node1 x4, node2 x4, cuda`."""
    counts = Counter(hosts)
    return ", ".join([*(f"{host} x{count}" for host, count in counts.items()), kind])


def entry(
    reports: Mapping[str, RankReports], hosts: Sequence[str], kind: str, found: Sequence[Finding]
) -> dict[str, Json]:
    """What a call has to tell of a machine: always the findings, and the constants if they were measured."""
    told: dict[str, Json] = {
        "hosts": list(hosts),
        "device": kind,
        "checked": _now(),
        "versions": reports["versions"][0].fact["versions"] if "versions" in reports else {},
        "checks": [{"name": f.name, "result": f.result.value.lower(), "sentence": f.sentence} for f in found],
    }
    measured = constants(reports)
    return {**told, "measured": {"date": _now(), **measured}} if measured else told


def constants(reports: Mapping[str, RankReports]) -> dict[str, Json]:
    """The constants in what all ranks measured: seconds, bytes a second and floating-point operations a second."""
    found: dict[str, Json] = {}
    if speed.NAME in reports and (points := speed.points(reports[speed.NAME])):
        backend = reports[group.EXAM.name][0].fact["backend"]
        sweep = [{"bytes": p.bytes, "seconds": p.seconds, "bus_bytes_per_s": p.bus} for p in points]
        best = max(point.bus for point in points)
        found["all_reduce"] = {
            "backend": backend,
            "latency_s": min(point.seconds for point in points),
            "bus_bytes_per_s": best,
            "by_size": sweep,
        }
    if stragglers.NAME in reports:
        facts = [report.fact for report in reports[stragglers.NAME]]
        about = {name: facts[0][name] for name in ("width", "dtype")}
        found["matmul"] = {**about, "flops_by_rank": [fact["flops"] for fact in facts]}
    told = [r for r in reports.get(disk.SPEED.name, ()) if r.fact]
    if told:
        found["disk_write_bytes_per_s"] = {report.host: report.fact["bytes_per_s"] for report in told}
    if copies.NEXT in reports and reports[copies.NEXT][0].fact:
        found["next_rank_bytes_per_s"] = [report.fact["bytes_per_s"] for report in reports[copies.NEXT]]
    if copies.HOST in reports and reports[copies.HOST][0].fact:
        found["to_device_bytes_per_s"] = [report.fact["to"] for report in reports[copies.HOST]]
        found["from_device_bytes_per_s"] = [report.fact["back"] for report in reports[copies.HOST]]
    return found


def save(path: Path, key: str, told: Mapping[str, Json]) -> None:
    """Put an entry into the file, beside those of other machines; what it does not tell anew stays as it was."""
    known = _read(path)
    machines = known.get("machines", {}) if known.get("format") == FORMAT else {}
    write_json(path, {"format": FORMAT, "machines": {**machines, key: {**machines.get(key, {}), **told}}})


def _read(path: Path) -> Mapping[str, Json]:
    """What the file holds; a file of something else counts as empty."""
    try:
        known = read_json(path)
    except ValueError:
        known = None
    return known if isinstance(known, dict) else {}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
