"""Real ranks that misbehave: they hang, stop answering, never arrive, are slow, or compute wrong values."""

import os
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from samestep.core.json_files import read_json
from samestep.doctor import check, doctor, rendezvous
from samestep.doctor.check import Check, Measured
from samestep.doctor.checks import collectives, disk, speed
from samestep.doctor.doctor import Request
from samestep.doctor.findings import Finding, RankReports, ok
from samestep.doctor.rendezvous import CheckContext
from samestep.launching import local
from samestep.parallel.wrap import SingleProcess

pytestmark = pytest.mark.timeout(900)
PRELOAD = ("samestep.doctor.doctor", "samestep.train.session.entry")


def rank() -> int:
    return int(os.environ["RANK"])


def fine(reports: RankReports) -> list[Finding]:
    return [ok("all fine", f"{len(reports)} ranks")]


def nothing(context: CheckContext) -> Measured:
    return {}


def hang_on_rank_1(context: CheckContext) -> Measured:
    if context.rank == 1:
        time.sleep(60)
    return {}


def stop_on_rank_2(context: CheckContext) -> Measured:
    if context.rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    return {}


def misbehave(folder: Path) -> int:
    """Rank 3 never arrives; the others wait until all have started, so that the limits are about what is planted."""
    if rank() == 3:
        return 0
    (folder / str(rank())).touch()
    while not all((folder / str(other)).exists() for other in range(3)):
        time.sleep(0.02)
    rendezvous.SLACK = check.SLACK = 3.0
    doctor.TESTS["basic"] = (
        Check("calm", nothing, fine, ""),
        Check("stuck", hang_on_rank_1, fine, "a planted nap; wake it"),
        Check("silent", stop_on_rank_2, fine, "a planted stop; let it continue"),
        Check("after", nothing, fine, ""),
        Check("in common", nothing, fine, "", together=True),
    )
    return doctor.run_doctor(Request("basic", folder, "cpu", timeout=3.0))


def test_ranks_that_hang_stop_or_never_come_are_named_and_the_table_still_comes(tmp_path: Path) -> None:
    workers = local.start(misbehave, 4, tmp_path, logs=tmp_path / "logs", preload=PRELOAD)
    for process in workers.processes[:2]:
        process.join(60)
    codes = [process.exitcode for process in workers.processes]
    workers.kill()
    output = " ".join(workers.output(0).split())
    assert codes[0] == 1, output
    assert codes[1] == 0  # its checks are over, though one of its threads still hangs
    assert "rank 3 did not come within 3 s, of 4 that local announced" in output
    assert (
        "rank 1 on" in output
        and "in hang_on_rank_1 was still not done after 3 s; likely cause: a planted nap" in output
    )
    assert "did not answer within 3 s and died or hangs; likely cause: a planted stop; let it continue" in output
    assert "all fine ok 3 ranks" in output and "all fine ok 2 ranks" in output
    assert "in common skipped" in output
    assert "3 of 5 checks failed, 1 skipped" in output


def wrong_on_rank_1(folder: Path) -> int:
    """Rank 1 gets wrong sums, does not synchronise its gradients, is slow, and has few descriptors."""
    speed.ROUNDS = 5
    if rank() == 1:
        really_reduce, really_time = dist.all_reduce, speed.rounds

        def reduce_wrongly(tensor: torch.Tensor, *args: object, **more: object) -> object:
            work = really_reduce(tensor, *args, **more)  # type: ignore[arg-type]
            tensor[0] += 1
            return work

        dist.all_reduce = reduce_wrongly
        speed.rounds = lambda work, barrier: really_time(lambda: time.sleep(0.4), barrier)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    doctor.TESTS["all"] = tuple(
        replace(check, measure=_unsynchronised) if check is collectives.GRADIENTS_CHECK else check
        for check in doctor.ALL
    )
    return doctor.run_doctor(Request("all", folder, "cpu", timeout=40.0, json_file=folder / "machine.json"))


def _unsynchronised(context: CheckContext) -> Measured:
    """Every rank alone, on its own rows."""
    collectives.wrap = lambda module, world, strategy, compute: SingleProcess(module, compute)  # type: ignore[assignment]
    return collectives.measure_gradients(context)


def test_wrong_sums_gradients_that_are_not_averaged_and_a_slow_rank_are_reported(tmp_path: Path) -> None:
    workers = local.start(wrong_on_rank_1, 2, tmp_path, logs=tmp_path / "logs", preload=PRELOAD)
    codes, output = workers.wait(80), workers.output(0)
    assert codes == [1, 0], output
    (machine,) = read_json(tmp_path / "machine.json")["machines"].values()
    checks = {check["name"]: check for check in machine["checks"]}
    bad = {name for name, check in checks.items() if check["result"] == "failed"}
    assert {"all-reduce values", "DDP gradients", "open files"} <= bad, output
    assert checks["all-reduce values"]["sentence"].startswith("rank 1 on ")
    assert "in the part of rank 0 on" in checks["all-reduce values"]["sentence"]
    assert checks["DDP gradients"]["sentence"].startswith("ranks 0, 1 on ")
    assert checks["open files"]["sentence"].startswith("rank 1 on ")
    assert checks["equal speed"]["result"] in ("failed", "warning")
    assert checks["equal speed"]["sentence"].startswith("rank 1 on ")
    assert checks["checkpoint round trip"]["result"] == "ok"
    assert checks["rank to next rank"]["result"] == "ok"
    measured = machine["measured"]
    assert measured["all_reduce"]["by_size"][0]["bytes"] == 4
    assert len(measured["matmul"]["flops_by_rank"]) == 2
    assert (tmp_path / "machine.svg").read_text().startswith("<svg")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing is left in the folder"


def sleep_in_a_check(folder: Path) -> int:
    doctor.TESTS["basic"] = (disk.CHECK, Check("long", _sleep, fine, ""), Check("never", nothing, fine, ""))
    return doctor.run_doctor(Request("basic", folder, "cpu", timeout=60.0))


def _sleep(context: CheckContext) -> Measured:
    (context.out / "asleep").touch()
    time.sleep(60)
    return {}


def test_what_was_found_is_printed_when_a_signal_comes(tmp_path: Path) -> None:
    workers = local.start(sleep_in_a_check, 1, tmp_path, logs=tmp_path / "logs", preload=PRELOAD)
    end = time.monotonic() + 40
    while not (tmp_path / "asleep").exists() and time.monotonic() < end:
        time.sleep(0.05)
    workers.signal(signal.SIGTERM)
    assert workers.wait(30) == [1]
    output = " ".join(workers.output(0).split())
    assert "disk: rename and locks ok" in output
    assert "long FAILED SIGTERM ended the checks here" in output
    assert "never" not in output
