"""Saves what was measured for later planning: one file for all machines, by their hosts, devices and ranks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from samestep.core.records import Json, read_json, write_json
from samestep.doctor.checks import collectives, copies, disk, speed, stragglers
from samestep.doctor.findings import Finding, RankReports

FORMAT = 1


def default_path(env: Mapping[str, str]) -> Path:
    """The file that constants are saved to by default."""
    cache = env.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "samestep" / "machine.json"


def machine_key(hosts: Sequence[str], kind: str) -> str:
    """The key of a machine in the file: `node1 x4, node2 x4, cuda`."""
    counts = Counter(hosts)
    return ", ".join([*(f"{host} x{count}" for host, count in counts.items()), kind])


def entry(
    reports: Mapping[str, RankReports], hosts: Sequence[str], kind: str, found: Sequence[Finding]
) -> dict[str, Json]:
    """The entry for a machine: always the findings, and the constants if they were measured."""
    checked: dict[str, Json] = {
        "hosts": list(hosts),
        "device": kind,
        "checked": _now(),
        "versions": reports["versions"][0].measured["versions"] if "versions" in reports else {},
        "checks": [{"name": f.name, "result": f.result.value.lower(), "sentence": f.sentence} for f in found],
    }
    measured = constants(reports)
    return {**checked, "measured": {"date": _now(), **measured}} if measured else checked


def constants(reports: Mapping[str, RankReports]) -> dict[str, Json]:
    """The constants in what all ranks measured: in seconds, bytes per second and FLOP/s."""
    found: dict[str, Json] = {}
    if speed.NAME in reports and (points := speed.points(reports[speed.NAME])):
        backend = reports[collectives.GROUP][0].measured["backend"]
        sweep = [{"bytes": p.bytes, "seconds": p.seconds, "bus_bytes_per_s": p.bus} for p in points]
        best = max(point.bus for point in points)
        found["all_reduce"] = {
            "backend": backend,
            "latency_s": min(point.seconds for point in points),
            "bus_bytes_per_s": best,
            "by_size": sweep,
        }
    if stragglers.NAME in reports:
        by_rank = [report.measured for report in reports[stragglers.NAME]]
        about = {name: by_rank[0][name] for name in ("width", "dtype")}
        found["matmul"] = {**about, "flops_by_rank": [measured["flops"] for measured in by_rank]}
    writers = [r for r in reports.get(disk.SPEED_CHECK.name, ()) if r.measured]
    if writers:
        found["disk_write_bytes_per_s"] = {report.host: report.measured["bytes_per_s"] for report in writers}
    if copies.NEXT in reports and reports[copies.NEXT][0].measured:
        found["next_rank_bytes_per_s"] = [report.measured["bytes_per_s"] for report in reports[copies.NEXT]]
    if copies.HOST in reports and reports[copies.HOST][0].measured:
        found["to_device_bytes_per_s"] = [report.measured["to"] for report in reports[copies.HOST]]
        found["from_device_bytes_per_s"] = [report.measured["back"] for report in reports[copies.HOST]]
    return found


def save(path: Path, key: str, new: Mapping[str, Json]) -> None:
    """Put an entry into the file, beside those of other machines; fields that it lacks keep their old values."""
    known = _read(path)
    machines = known.get("machines", {}) if known.get("format") == FORMAT else {}
    write_json(path, {"format": FORMAT, "machines": {**machines, key: {**machines.get(key, {}), **new}}})


def _read(path: Path) -> Mapping[str, Json]:
    """The content of the file; a file of another kind counts as empty."""
    try:
        known = read_json(path)
    except ValueError:
        known = None
    return known if isinstance(known, dict) else {}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
