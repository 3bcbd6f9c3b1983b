"""torch's store as a server on this machine; what is in it is authenticated by its clients."""

import resource
import socket
from contextlib import suppress
from datetime import timedelta
from typing import Any

LOCALHOST = "127.0.0.1"


def serve_store(port: int = 0, *, only_here: bool, timeout: timedelta = timedelta(minutes=5)) -> Any:
    """A TCPStore that listens; `only_here`: not for other machines. Port 0: one that the system chooses.

    torch itself would listen on all interfaces. The system chooses the port when it is opened, so no other process
    can take it in between.
    """
    from torch._C._distributed_c10d import TCPStore

    _allow_many_connections()
    options: dict[str, Any] = {"is_master": True, "timeout": timeout, "wait_for_workers": False}
    if not only_here:
        return TCPStore(LOCALHOST, port, **options)
    with socket.create_server((LOCALHOST, port), backlog=1024) as server:
        return TCPStore(LOCALHOST, server.getsockname()[1], **options, master_listen_fd=server.detach())


def _allow_many_connections() -> None:
    """As many open files as the system allows: each rank connects several times, and strangers may connect too."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
