"""The constants that are saved for planning, and their plot."""

import json
from pathlib import Path
from xml.etree import ElementTree

from doctor.doctor_tables import ranks
from samestep.doctor import report
from samestep.doctor.checks.speed import Point
from samestep.doctor.findings import RankReports, ok
from samestep.doctor.report import bar, svg

POINTS = [Point(4, 2e-5, 2e5), Point(4096, 4e-5, 1e8), Point(1 << 20, 1e-3, 1e9), Point(1 << 26, 0.1, 6.7e8)]
PAIR = ("node1", "node2")


def measured() -> dict[str, RankReports]:
    return {
        "process group": ranks({"backend": "gloo", "device": "cpu"}, hosts=PAIR),
        "all-reduce speed": ranks({"times": [[p.bytes, p.seconds] for p in POINTS]}, hosts=PAIR),
        "equal speed": ranks({"flops": 1e11, "width": 512, "dtype": "float32"}, {"flops": 5e10}, hosts=PAIR),
        "disk speed": ranks({"bytes_per_s": 1e9}, {}, hosts=PAIR),
        "rank to next rank": ranks({"bytes_per_s": 2e9, "right": True}, hosts=PAIR),
        "host to device": ranks({}, hosts=PAIR),
    }


def test_constants_are_in_plain_units() -> None:
    found = report.constants(measured())
    assert found["all_reduce"]["backend"] == "gloo"
    assert found["all_reduce"]["latency_s"] == 2e-5
    assert [row["bytes"] for row in found["all_reduce"]["by_size"]] == [point.bytes for point in POINTS]
    assert found["matmul"] == {"width": 512, "dtype": "float32", "flops_by_rank": [1e11, 5e10]}
    assert found["disk_write_bytes_per_s"] == {"node1": 1e9, "node2": 1e9}
    assert found["next_rank_bytes_per_s"] == [2e9, 2e9]
    assert "to_device_bytes_per_s" not in found


def test_machines_are_saved_side_by_side_and_basic_keeps_what_all_measured(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "machine.json"
    complete = report.entry(measured(), PAIR, "cpu", [ok("a", "b")])
    report.save(path, report.machine_key(PAIR, "cpu"), complete)
    report.save(path, report.machine_key(["node1"] * 4, "cuda"), report.entry({}, ["node1"] * 4, "cuda", []))
    report.save(path, report.machine_key(PAIR, "cpu"), report.entry({}, PAIR, "cpu", [ok("c", "d")]))
    machines = json.loads(path.read_text())["machines"]
    assert list(machines) == ["node1 x1, node2 x1, cpu", "node1 x4, cuda"]
    first = machines["node1 x1, node2 x1, cpu"]
    assert first["checks"] == [{"name": "c", "result": "ok", "sentence": "d"}]
    assert first["measured"]["all_reduce"]["bus_bytes_per_s"] == complete["measured"]["all_reduce"]["bus_bytes_per_s"]


def test_a_file_of_another_kind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    for text in ("not JSON", "[1, 2]", '{"format": 99, "machines": {"x": {}}}'):
        path.write_text(text)
        report.save(path, "a", {"device": "cpu"})
        assert json.loads(path.read_text())["machines"] == {"a": {"device": "cpu"}}


def test_the_file_is_in_the_users_cache() -> None:
    assert report.default_path({"XDG_CACHE_HOME": "/c"}) == Path("/c/samestep/machine.json")
    assert report.default_path({}) == Path.home() / ".cache" / "samestep" / "machine.json"


def test_the_plot_is_valid_and_shows_every_size() -> None:
    drawn = ElementTree.fromstring(svg(POINTS, "gloo <2 & more>"))
    space = "{http://www.w3.org/2000/svg}"
    circles = drawn.findall(f"{space}circle")
    assert len(circles) == 2 * len(POINTS)
    width, height = (float(number) for number in drawn.get("viewBox", "").split()[2:])
    assert all(0 < float(c.get("cx", -1)) < width and 0 < float(c.get("cy", -1)) < height for c in circles)
    times = [float(circle.get("cy", 0)) for circle in circles[: len(POINTS)]]
    assert times == sorted(times, reverse=True)  # longer messages take longer, so are higher
    ElementTree.fromstring(svg(POINTS[:1], "one point"))


def test_bars() -> None:
    assert bar(1, 1) == "█" * 24
    assert len(bar(0.5, 1)) == 12
    assert bar(1e-9, 1) == bar(0, 0) == ""
