"""Ranks find each other without a given port, also where other jobs use the same candidate ports."""

import os
import socket
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import HashStore

from fuzz.real_command import TRAIN, run
from samestep.core.errors import UserError
from samestep.core.handshake import Listener
from samestep.core.launch_env import SECRET
from samestep.core.store_server import LOCALHOST
from samestep.world import rendezvous
from samestep.world.authenticated_store import NotAuthentic
from samestep.world.rank_discovery import RankInfo
from samestep.world.rendezvous import authenticated, candidate_ports, open_store, store_key

SOON = timedelta(seconds=10)


def rank_info(rank: int, job: str, size: int = 2) -> RankInfo:
    return RankInfo("test", rank, size, rank, size, address=LOCALHOST, job=job)


def read_from_rank_0(job: str) -> str:
    """What rank 1 of a job reads that rank 0 wrote; rank 1 is there first."""
    read: list[str] = []

    def second() -> None:
        read.append(open_store(rank_info(1, job), {}, SOON).get("key").decode())

    thread = threading.Thread(target=second)
    thread.start()
    store = open_store(rank_info(0, job), {}, SOON)  # kept open as long as it is referenced
    store.set("key", f"of {job}")
    thread.join(20)
    return read[0]


def test_ranks_meet_by_their_job_alone() -> None:
    assert read_from_rank_0(f"job {os.getpid()}") == f"of job {os.getpid()}"


def test_two_jobs_with_the_same_ports_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    first = candidate_ports(f"one {os.getpid()}")
    monkeypatch.setattr(rendezvous, "candidate_ports", lambda job: first)
    assert [read_from_rank_0(job) for job in ("one", "two", "three")] == ["of one", "of two", "of three"]


def test_another_process_on_the_port_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that answers something else, and one that never answers."""
    monkeypatch.setattr(rendezvous, "ANSWER_TIMEOUT", 0.2)
    ports = candidate_ports(f"busy {os.getpid()}")
    monkeypatch.setattr(rendezvous, "candidate_ports", lambda job: ports)
    with socket.create_server(("", ports[0])) as other, socket.create_server(("", ports[1])):

        def answer_http() -> None:
            while True:
                try:
                    caller, _ = other.accept()
                except OSError:
                    return
                caller.sendall(b"HTTP/1.1 400 Bad Request\r\n")
                caller.close()

        threading.Thread(target=answer_http, daemon=True).start()
        assert read_from_rank_0("busy") == "of busy"


def test_a_given_address_and_port_are_taken_as_they_are() -> None:
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    store = open_store(rank_info(0, "given", size=1), {"MASTER_ADDR": LOCALHOST, "MASTER_PORT": str(port)}, SOON)
    assert store.inner.port == port


def test_ranks_of_one_host_listen_for_no_other() -> None:
    """Neither the store nor the ports at which it is found."""
    job = f"here {os.getpid()}"
    store = open_store(rank_info(0, job), {}, SOON)
    for port in (store.inner.port, candidate_ports(job)[0]):
        with socket.create_connection((LOCALHOST, port), timeout=5):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=5)


@pytest.mark.parametrize("port", ["", "given"])
def test_a_rank_with_another_secret_is_told(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "OTHER_SECRET_WAIT", 0.2)
    job, env = f"secrets {os.getpid()} {port}", {"MASTER_ADDR": LOCALHOST}
    if port:
        with socket.create_server(("", 0)) as free:
            env["MASTER_PORT"] = str(free.getsockname()[1])
    store = open_store(rank_info(0, job), {**env, SECRET: "1" * 32}, SOON)
    with pytest.raises(UserError, match=f"rank 1 on .* has another secret than rank 0.* set {SECRET}"):
        open_store(rank_info(1, job), {**env, SECRET: "2" * 32}, SOON)
    del store


def test_who_answers_without_the_secret_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that claims to be rank 0 of the job, on the first port; the real rank 0 takes the next one."""
    job = f"claimed {os.getpid()}"
    server = socket.create_server((LOCALHOST, candidate_ports(job)[0]))
    fake = Listener(server, b"guessed", lambda connection, lines: None, topic=job)
    fake.start()
    try:
        assert read_from_rank_0(job) == f"of {job}"
    finally:
        fake.close()


def test_a_rank_that_does_not_find_rank_0_names_the_ports_it_tried() -> None:
    with pytest.raises(UserError, match=r"rank 0 was not found on 127.0.0.1, ports \d+ to \d+"):
        open_store(rank_info(1, f"nobody {os.getpid()}"), {}, timedelta(seconds=0.3))


@pytest.mark.parametrize(
    ("env", "sentence"),
    [({"MASTER_PORT": "many"}, "is not a port"), ({"MASTER_PORT": "70000"}, "is not a port")],
)
def test_an_invalid_port_is_refused(env: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        open_store(rank_info(0, "x"), env, SOON)


def test_an_unknown_address_is_an_error_that_names_the_variable() -> None:
    with pytest.raises(UserError, match="set MASTER_ADDR"):
        open_store(RankInfo("mpiexec (MPICH)", 0, 2, 0, 1, job="hydra "), {}, SOON)


def test_every_store_has_a_key_of_its_own() -> None:
    """Entries of an earlier attempt, or of another launch under torchrun's usual run id, must not count."""
    info, env = RankInfo("torchrun", 1, 2, 1, 2), {SECRET: "x" * 40, "TORCHELASTIC_RUN_ID": "none"}
    keys = {store_key(info, {**env, "MASTER_PORT": port}) for port in ("1000", "1001")}
    keys |= {store_key(rank_info(1, job), env) for job in ("slurm 1.0.0", "slurm 1.0.1")}
    assert len(keys) == 4


def test_launches_with_the_same_job_and_port_have_different_keys() -> None:
    """As those of stock torchrun often are: what was written in one does not count in the next."""
    key, before, later = b"k" * 32, HashStore(), HashStore()
    first, second = (authenticated(store, key, rank_info(0, "job")) for store in (before, later))
    first.set("failure", "of an earlier launch")
    assert authenticated(before, key, rank_info(1, "job")).get("failure") == b"of an earlier launch"
    later.set(second._name("failure"), before.get(first._name("failure")))
    with pytest.raises(NotAuthentic):
        second.get("failure")


def test_what_a_stranger_wrote_before_rank_0_is_replaced() -> None:
    store = HashStore()
    store.set("samestep/secret", "x" * 64)
    authenticated(store, b"k" * 32, rank_info(0, "job")).set("a", "1")
    assert authenticated(store, b"k" * 32, rank_info(1, "job")).get("a") == b"1"


def test_a_rank_that_finds_nobody_at_the_given_address_says_so_without_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server((LOCALHOST, 0)) as free:
        port = free.getsockname()[1]
    launcher = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": LOCALHOST, "MASTER_PORT": str(port)}
    for name, value in {**launcher, "NCCL_TIMEOUT": "1", SECRET: "1" * 32}.items():
        monkeypatch.setenv(name, value)
    ended = run(TRAIN, tmp_path)
    assert ended.code == 2 and not ended.problem, ended
    assert ended.output.startswith(f"samestep: rank 1 cannot meet the others at {LOCALHOST}:{port} (")
    assert "MASTER_ADDR" in ended.output and len(ended.output.splitlines()) == 1, "no line of torch's own"
