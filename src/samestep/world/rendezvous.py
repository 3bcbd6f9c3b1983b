"""Rendezvous: how ranks find the store of their launch, and make sure that it is theirs.

torchrun and `samestep train --nproc` name the address of the store. Under srun and mpiexec no rank can know which port
will be free on another machine. So rank 0 opens the store on any free port. It also listens on the first free one of a
few ports that follow from the job's id, and tells the store's port to those who know the secret of the job. A rank
tries these ports until one answers that knows it too; other programs and other jobs are recognised and skipped.
"""

import hmac
import secrets
import socket
import sys
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistError
from torch.distributed.rendezvous import rendezvous

from samestep.core import handshake, launch_env
from samestep.core.errors import UserError, first_line
from samestep.core.handshake import Lines, Listener, NotTrusted
from samestep.core.native_output import without_native_output
from samestep.core.output import print_safely
from samestep.core.secret import derive_key, find_secret
from samestep.core.store_server import LOCALHOST, serve_store
from samestep.world.authenticated_store import AuthenticatedStore
from samestep.world.missing_ranks import Notices
from samestep.world.network_interface import is_loopback
from samestep.world.rank_discovery import RankInfo, main_address

FIRST, RANGE, PORTS = 15000, 12000, 16
"""These ports lie below those that operating systems assign by themselves."""
ANSWER_TIMEOUT = 2.0
"""Seconds that a process which listens on a port has to answer."""
OTHER_SECRET_WAIT = 30.0
"""Seconds after which a rank gives up that finds rank 0 of its job, but with another secret."""
_SECRET_CHECK = "samestep/secret"
_NONCE = 32


def open_store(info: RankInfo, env: Mapping[str, str], timeout: timedelta) -> AuthenticatedStore:
    """The store of this launch, on every rank; an address or port that the user set is taken as it is."""
    key = store_key(info, env)
    if info.job:
        inner = _store_of_job(info, env, derive_key(key, "rendezvous"), timeout)
    else:
        inner = _store_at_address(info, env, timeout)
    return authenticated(inner, key, info)


def _store_at_address(info: RankInfo, env: Mapping[str, str], timeout: timedelta) -> Any:
    """The store whose address the launcher gave. Of a failure torch prints each try, with stack frames in C++."""
    try:
        with without_native_output():
            return next(iter(rendezvous("env://", timeout=timeout)))[0]
    except (DistError, ValueError) as error:
        where, why = f"{env.get('MASTER_ADDR')}:{env.get('MASTER_PORT')}", first_line(error).rstrip(".")
        sentence = (
            f"rank {info.rank} cannot meet the others at {where} ({why}); see that rank 0 has started there, and that "
            "MASTER_ADDR and MASTER_PORT name a free port of its host, which all ranks can reach"
        )
        if info.rank and launch_env.FOLDER not in env:  # rank 0, which prints what concerns all, knows nothing of it
            print_safely(f"samestep: {sentence}", sys.stderr)
        raise UserError(sentence) from None


def store_key(info: RankInfo, env: Mapping[str, str]) -> bytes:
    """The key of the entries in this store, whoever made the secret. Those of another launch or attempt do not count.

    Each attempt has a store of its own, so its port tells attempts apart; torchrun's run id is often the same.
    """
    launch = info.job or env.get("TORCHELASTIC_RUN_ID", "")
    return derive_key(find_secret(env), "store", launch, env.get("MASTER_PORT", ""))


def authenticated(inner: Any, key: bytes, info: RankInfo) -> AuthenticatedStore:
    """The store with authenticated entries, if this rank has the same secret as rank 0.

    Rank 0 adds something random to the key: the job and the port may be those of an earlier launch.
    """
    if info.rank == 0:
        own = secrets.token_bytes(_NONCE)
        found = inner.compare_set(_SECRET_CHECK, "", own + _check(key, own))
        if not _is_of(key, found):  # somebody else was faster
            found = own + _check(key, own)
            inner.set(_SECRET_CHECK, found)
    else:
        found = inner.get(_SECRET_CHECK)
        if not _is_of(key, found):
            raise _other_secret(info)
    return AuthenticatedStore(inner, hmac.digest(key, b"launch " + found[:_NONCE], "sha256"))


def _check(key: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, _SECRET_CHECK.encode() + nonce, "sha256")


def _is_of(key: bytes, found: bytes) -> bool:
    return hmac.compare_digest(found[_NONCE:], _check(key, found[:_NONCE]))


def _other_secret(info: RankInfo) -> UserError:
    return UserError(
        f"rank {info.rank} on {socket.gethostname()} has another secret than rank 0, so the ranks do not share a home "
        f"directory: set {launch_env.SECRET} to the same random text on every rank"
    )


def _store_of_job(info: RankInfo, env: Mapping[str, str], key: bytes, timeout: timedelta) -> Any:
    address = main_address(info, env)
    port_text, only_here = env.get("MASTER_PORT"), info.local_size == info.size and is_loopback(address)
    port = _port_number(port_text) if port_text else 0
    if info.rank == 0:
        store = serve_store(port, only_here=only_here, timeout=timeout)
        if not port_text and info.size > 1:
            _tell_port(info.job, key, store.port, only_here)
        return store
    port = port or _find_store(address, info, key, timeout)
    return TCPStore(address, port, info.size, False, timeout, wait_for_workers=False)


def candidate_ports(job: str) -> list[int]:
    """The ports at which rank 0 of a job may be found, in the order in which they are tried."""
    first = FIRST + zlib.crc32(job.encode()) % RANGE
    return list(range(first, first + PORTS))


def _port_number(port: str) -> int:
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"MASTER_PORT={port!r} is not a port: set it to a number from 1 to 65535, or unset it")
    return int(port)


def _tell_port(job: str, key: bytes, port: int, only_here: bool) -> None:
    """Tell the store's port to every process that connects and knows the key; each rank connects once."""

    def tell(connection: socket.socket, lines: Lines) -> None:
        with connection, suppress(OSError):
            connection.sendall(lines.seal(b"%d" % port))

    Listener(_listen(job, LOCALHOST if only_here else ""), key, tell, topic=job).start()


def _listen(job: str, address: str) -> socket.socket:
    for port in candidate_ports(job):
        try:
            return socket.create_server((address, port), backlog=1024)
        except OSError:  # used by another process
            continue
    ports = candidate_ports(job)
    raise UserError(f"ports {ports[0]} to {ports[-1]} are all in use here: set MASTER_PORT to a free one")


def _find_store(address: str, info: RankInfo, key: bytes, timeout: timedelta) -> int:
    begin, notices, limit = time.monotonic(), Notices(), timeout.total_seconds()
    while (waited := time.monotonic() - begin) < limit:
        if info.local_rank == 0 and notices.is_due(waited):
            where = f"rank {info.rank} on {socket.gethostname()} has looked for rank 0 on {address}"
            text = f"{where} for {waited:.0f} s; it ends if this lasts for {limit:.0f} s"
            print_safely(f"samestep: {text}", sys.stderr)
        refused = False
        for port in candidate_ports(info.job):
            try:
                return _ask_port(address, port, key, info.job)
            except NotTrusted:
                refused = True
            except (OSError, ValueError):  # nobody, or another program
                continue
        if refused and waited > OTHER_SECRET_WAIT:
            raise _other_secret(info)
        time.sleep(0.1)
    first, last = candidate_ports(info.job)[0], candidate_ports(info.job)[-1]
    raise UserError(
        f"rank 0 was not found on {address}, ports {first} to {last}, within {timeout}: check that the name resolves "
        "here and no firewall is in between, or set MASTER_ADDR and MASTER_PORT on every rank"
    )


def _ask_port(address: str, port: int, key: bytes, job: str) -> int:
    """The store's port, from who listens on this one."""
    with socket.create_connection((address, port), timeout=ANSWER_TIMEOUT) as connection:
        lines = handshake.call(connection, key, job, ANSWER_TIMEOUT)
        connection.settimeout(ANSWER_TIMEOUT)
        with connection.makefile("rb") as incoming:
            return int(lines.open(incoming.readline(1024).rstrip(b"\n")))
