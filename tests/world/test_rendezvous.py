"""Ranks find each other without a port, also where other jobs stand at the same doors."""

import os
import socket
import threading
from datetime import timedelta

import pytest

from samestep.core.errors import UserError
from samestep.world import rendezvous
from samestep.world.rank_discovery import HERE, RankInfo
from samestep.world.rendezvous import doors, open_store

SOON = timedelta(seconds=10)


def place(rank: int, job: str, size: int = 2) -> RankInfo:
    return RankInfo("test", rank, size, rank, size, address=HERE, job=job)


def meet(job: str) -> str:
    """What rank 1 of a job reads that rank 0 wrote; rank 1 is there first."""
    read: list[str] = []

    def second() -> None:
        read.append(open_store(place(1, job), {}, SOON).get("word").decode())

    thread = threading.Thread(target=second)
    thread.start()
    store = open_store(place(0, job), {}, SOON)  # it lasts as long as it is held
    store.set("word", f"of {job}")
    thread.join(20)
    return read[0]


def test_ranks_meet_by_their_job_alone() -> None:
    assert meet(f"job {os.getpid()}") == f"of job {os.getpid()}"


def test_two_jobs_at_one_door_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    first = doors(f"one {os.getpid()}")
    monkeypatch.setattr(rendezvous, "doors", lambda job: first)
    assert [meet("one"), meet("two"), meet("three")] == ["of one", "of two", "of three"]


def test_whoever_else_uses_the_port_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that answers something else, and one that never answers."""
    monkeypatch.setattr(rendezvous, "ASK", 0.2)
    ports = doors(f"busy {os.getpid()}")
    monkeypatch.setattr(rendezvous, "doors", lambda job: ports)
    with socket.create_server(("", ports[0])) as rude, socket.create_server(("", ports[1])):

        def shout() -> None:
            while True:
                try:
                    caller, _ = rude.accept()
                except OSError:
                    return
                caller.sendall(b"HTTP/1.1 400 Bad Request\r\n")
                caller.close()

        threading.Thread(target=shout, daemon=True).start()
        assert meet("busy") == "of busy"


def test_a_given_address_and_port_are_taken_as_they_are() -> None:
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    store = open_store(place(0, "given", size=1), {"MASTER_ADDR": HERE, "MASTER_PORT": str(port)}, SOON)
    assert store.port == port


def test_a_rank_that_finds_nobody_says_where_it_looked() -> None:
    with pytest.raises(UserError, match=r"rank 0 was not found on 127.0.0.1, ports \d+ to \d+"):
        open_store(place(1, f"nobody {os.getpid()}"), {}, timedelta(seconds=0.3))


@pytest.mark.parametrize(
    ("env", "sentence"),
    [({"MASTER_PORT": "many"}, "is no port"), ({"MASTER_PORT": "70000"}, "is no port")],
)
def test_a_port_that_is_none_is_refused(env: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        open_store(place(0, "x"), env, SOON)


def test_an_unknown_address_is_asked_for() -> None:
    with pytest.raises(UserError, match="set MASTER_ADDR"):
        open_store(RankInfo("mpiexec (MPICH)", 0, 2, 0, 1, job="hydra "), {}, SOON)
