"""Every planted fault is reported with its rank and host, and nothing is reported about good machines."""

from typing import Any

import pytest

from doctor.doctor_tables import ranks, results
from samestep.doctor.checks import collectives, devices, disk, network, speed, versions
from samestep.doctor.findings import FindingStatus

GIB = 1 << 30
VERSIONS = {"Python": "3.11.7", "torch": "2.13.0", "CUDA": "12.8", "driver": "570.1", "NCCL": "2.26"}
FILES = {"a.py": "11", "b.py": "22"}
CARD = {"kind": "cuda", "name": "H100", "free": 79 * GIB, "total": 80 * GIB}
HOST = {
    "cores": list(range(8)),
    "threads": 4,
    "ranks": 2,
    "memory": 64 * GIB,
    "available": 32 * GIB,
    "built_for": "12.8",
}
DEVICE = {**CARD, **HOST, "blind": False}
NAMES = {"addresses": {"node1": "10.0.0.1", "node2": "10.0.0.2"}}
PORT = {"bound": "", "taken": 0, "reached": "", "address": "node1", "offset": 1e-5, "uncertainty": 1e-4}
LIMIT = {"files": 65536, "most_files": 65536, "size": 4, "ranks": 2, "shared": 64 * GIB, "free": 60 * GIB}
DISK = {"folder": "/runs", "seen": True, "free": 900 * GIB, "total": 1000 * GIB, "full_of_files": False, "wrong": ""}
TIMED = {"seconds": 0.1, "share": 0.99, "kind": "cpu"}
CHECKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "versions": (versions.compare, {"versions": VERSIONS, "files": FILES}),
    "devices": (devices.compare, DEVICE),
    "hosts": (network.compare_host_names, NAMES),
    "ports": (network.compare_ports, PORT),
    "limits": (devices.compare_limits, LIMIT),
    "disk": (disk.compare, {**DISK, "seconds": 0.001}),
    "disk speed": (disk.compare_speed, {"bytes_per_s": 1e9}),
    "values": (collectives.compare_values, {"wrong": {}, "missing": [], "tried": 6}),
    "gradients": (collectives.compare_gradients, {"distance": 1e-7, "hash": "abc"}),
    "speed": (speed.compare, {"times": [[4, 1e-5], [1024, 2e-5]]}),
    "peers": (speed.compare_peers, {"cards": 8, "apart": []}),
    "copies": (speed.compare_host, {"to": 5e10, "back": 5e10}),
    "next": (speed.compare_next, {"bytes_per_s": 1e10, "right": True}),
    "roundtrip": (disk.compare_round_trip, {"wrong": "", "seconds": 0.1, "shared": True}),
    "stragglers": (speed.compare_stragglers, TIMED),
}
OTHER_TORCH = {"versions": {**VERSIONS, "torch": "2.11.0"}}
OTHER_CODE = {"files": {**FILES, "b.py": "33", "c.py": "1"}}


@pytest.mark.parametrize("name", CHECKS)
def test_nothing_is_reported_about_good_machines(name: str) -> None:
    compare, usual = CHECKS[name]
    assert set(results(compare(ranks(usual)))) == {FindingStatus.OK}
    assert set(results(compare(ranks(usual, hosts=["node1"])))) == {FindingStatus.OK} or name == "speed"


@pytest.mark.parametrize(
    ("name", "change", "result", "text"),
    [
        ("versions", OTHER_TORCH, "FAILED", "rank 3 on node2 with torch 2.11.0 instead of 2.13.0"),
        ("versions", {"versions": {**VERSIONS, "NCCL": ""}}, "FAILED", "NCCL none instead of 2.26"),
        ("versions", OTHER_CODE, "FAILED", "rank 3 on node2 has other code in b.py and 1 more"),
        ("devices", {"refused": "2 ranks but 1 card"}, "FAILED", "rank 3 on node2: 2 ranks but 1 card"),
        ("devices", {"blind": True}, "FAILED", "the driver is too old for its CUDA 12.8"),
        ("devices", {"blind": True, "built_for": ""}, "FAILED", "it is a build without CUDA"),
        ("devices", {"kind": "cpu", "name": "CPU"}, "FAILED", "rank 3 on node2 computes on CPU, the others on H100"),
        ("devices", {"name": "A100"}, "warning", "rank 3 on node2 has A100, the others H100"),
        ("devices", {"free": 40 * GIB}, "warning", "only 40 GiB of 80 GiB free: another process is on the card"),
        ("devices", {"threads": 8}, "warning", "with 12 threads in all share 8 cores and slow each other down"),
        ("devices", {"cores": [0]}, "warning", "rank 3 on node2 may use only 1 core for 4 threads"),
        ("hosts", {"addresses": {"node1": "10.0.0.1", "node2": "10.0.0.2"}}, "ok", "node1 is 10.0.0.1"),
        ("ports", {"bound": "EMFILE"}, "FAILED", "rank 3 on node2 cannot open any port (EMFILE)"),
        ("ports", {"reached": "TimeoutError: x", "port": 5}, "FAILED", "cannot reach rank 0 at node1:5 (TimeoutError"),
        ("ports", {"reached": "gaierror: x", "port": 5}, "FAILED", "the name is not known there; add it to /etc/hosts"),
        ("limits", {"files": 200}, "FAILED", "rank 3 on node2 may open only 200 files (280 are needed at least)"),
        ("limits", {"files": 1024}, "warning", "ulimit -n 65536 before starting"),
        (
            "disk",
            {"wrong": "Read-only file system"},
            "FAILED",
            "rank 3 on node2 cannot write, rename and lock in /runs",
        ),
        ("disk", {"free": GIB // 2}, "FAILED", "rank 3 on node2 has 512 MiB of 1000 GiB free"),
        ("disk", {"free": 5 * GIB}, "warning", "checkpoints will soon fill it"),
        ("disk", {"full_of_files": True}, "FAILED", "rank 3 on node2 has no free inodes"),
        ("disk", {"seen": False}, "warning", "rank 3 on node2 does not see the files of rank 0 in /runs"),
        ("values", {"wrong": {"nccl float16": [2]}}, "FAILED", "by nccl float16, in the part of rank 2 on node2"),
        ("gradients", {"distance": 0.5}, "FAILED", "rank 3 on node2 differs by 5.0e-01"),
        ("gradients", {"distance": float("nan")}, "FAILED", "rank 3 on node2 differs by nan"),
        ("gradients", {"hash": "xyz"}, "FAILED", "rank 3 on node2 has other bits"),
        ("copies", {"to": 1e10}, "warning", "rank 3 on node2 copies at 10 GB/s, the others at 50 GB/s"),
        ("next", {"right": False}, "FAILED", "rank 3 on node2 got other values"),
        ("roundtrip", {"wrong": "part 3"}, "FAILED", "rank 3 on node2 did not get back part 3"),
        (
            "stragglers",
            {"seconds": 0.2},
            "warning",
            "rank 3 on node2 is 2.0 times slower than the median of the others",
        ),
        ("stragglers", {"seconds": 0.2, "share": 0.4}, "warning", "it got 40% of a core"),
        ("stragglers", {"seconds": 0.2, "kind": "cuda"}, "warning", "throttled or shared GPU"),
        ("stragglers", {"seconds": 0.9}, "FAILED", "rank 3 on node2 is 9.0 times slower"),
        ("stragglers", {"seconds": 0.14}, "ok", "the slowest 1.40 times the median of the others"),
    ],
)
def test_the_last_rank_is_named(name: str, change: dict[str, Any], result: str, text: str) -> None:
    compare, usual = CHECKS[name]
    found = [finding for finding in compare(ranks(usual, change)) if text in finding.sentence]
    assert [finding.result.value for finding in found] == [result]


@pytest.mark.parametrize(
    ("name", "changes", "result", "text"),
    [  # of ranks 2 and 3, the second of which is not the first of its host
        ("devices", {"available": GIB}, "warning", "node2 has 1 GiB left for 2 ranks"),
        ("hosts", {"addresses": {"node1": "", "node2": "10.0.0.2"}}, "FAILED", "node2 does not know the name node1"),
        ("hosts", {"addresses": {"node1": "10.0.0.1", "node2": ""}}, "FAILED", "its own name node2"),
        (
            "hosts",
            {"addresses": {"node1": "10.0.0.1", "node2": "127.0.1.1"}},
            "warning",
            "resolves to a loopback address",
        ),
        ("ports", {"offset": 2.0}, "warning", "the clock of node2 is 2 s ahead of node1's (give or take 100 µs)"),
        ("ports", {"offset": -60.0}, "FAILED", "the clock of node2 is 60 s behind node1's"),
        ("ports", {"offset": 0.6, "uncertainty": 0.3}, "ok", "give or take 300 ms"),
        ("limits", {"shared": 64 << 20, "free": 64 << 20}, "warning", "64 MiB of 64 MiB free in /dev/shm of node2"),
        ("limits", {"free": 1 << 20}, "FAILED", "--shm-size=8g"),
        ("peers", {"apart": [[0, 1]]}, "warning", "cards 0 and 1 of node2"),
    ],
)
def test_a_host_is_named(name: str, changes: dict[str, Any], result: str, text: str) -> None:
    compare, usual = CHECKS[name]
    found = [finding for finding in compare(ranks(usual, changes, changes)) if text in finding.sentence]
    assert [finding.result.value for finding in found] == [result]


def test_an_unknown_name_is_a_warning_on_one_host() -> None:
    lone = ranks({"addresses": {"node1": ""}}, hosts=["node1"])
    assert results(network.compare_host_names(lone)) == [FindingStatus.WARNING]


def test_a_port_in_use_is_a_warning_before_a_launch() -> None:
    found = network.compare_ports(ranks(PORT, {"taken": 29500}, hosts=["node1"]))
    assert results(found) == [FindingStatus.WARNING, FindingStatus.OK]
    assert "port 29500" in found[0].sentence


def test_what_needs_a_device_or_a_peer_is_skipped_without() -> None:
    assert results(speed.compare_peers(ranks({"cards": 0, "apart": []}))) == [FindingStatus.SKIPPED]
    assert results(speed.compare_peers(ranks({"cards": 1, "apart": []}))) == [FindingStatus.SKIPPED]
    assert results(speed.compare_host(ranks({}))) == [FindingStatus.SKIPPED]
    assert results(speed.compare_next(ranks({}, hosts=["node1"]))) == [FindingStatus.SKIPPED]
    assert results(speed.compare(ranks({"times": []}, hosts=["node1"]))) == [FindingStatus.SKIPPED]


def test_a_type_that_cannot_be_sent_is_a_warning() -> None:
    found = collectives.compare_values(ranks({"wrong": {}, "missing": ["gloo bfloat16"], "tried": 5}))
    assert results(found) == [FindingStatus.WARNING]


def test_of_two_ranks_the_slow_one_is_named() -> None:
    found = speed.compare_stragglers(ranks(TIMED, {"seconds": 0.19}, hosts=["node1", "node2"]))
    assert "rank 1 on node2 is 1.9 times slower" in found[0].sentence


def test_bandwidth_is_that_of_the_slowest_rank() -> None:
    fast, slow = {"times": [[4, 1e-5], [1 << 20, 1e-3]]}, {"times": [[4, 2e-5], [1 << 20, 2e-3]]}
    found = speed.points(ranks(fast, slow, hosts=["node1", "node2"]))
    assert [point.seconds for point in found] == [2e-5, 2e-3]
    assert found[1].bus == pytest.approx((1 << 20) / 2e-3)  # with two ranks each sends every byte once
    assert "20 µs for 4 B" in speed.summarize(found)
