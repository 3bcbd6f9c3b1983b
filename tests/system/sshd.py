"""A real sshd on a host, with keys of its own, and an ssh that knows them: nothing of the user's own is used."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from system.hosts import Host, wait_for
from system.requirements import require

_SERVER = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PermitRootLogin yes
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
"""
_CLIENT = """
Host *
    IdentityFile {folder}/{key}
    IdentitiesOnly yes
    IdentityAgent none
    GlobalKnownHostsFile {folder}/known_hosts
    UserKnownHostsFile {folder}/known_hosts
    LogLevel ERROR
Host second
    HostName node2
"""


@dataclass(frozen=True)
class Ssh:
    """The keys and configurations, in one folder."""

    folder: Path

    @classmethod
    def prepare(cls, folder: Path) -> "Ssh":
        """Make them; ssh knows the host key of node2 only."""
        require("ssh between hosts", ("ssh", "ssh-keygen", "sshd"), root=True)
        folder.mkdir()
        for name in ("host_key", "user_key", "unknown_key"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(make, check=True, capture_output=True)
        shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
        (folder / "known_hosts").write_text(f"node2 {(folder / 'host_key.pub').read_text()}")
        (folder / "sshd_config").write_text(_SERVER.format(folder=folder))
        for key in ("user_key", "unknown_key"):
            (folder / f"{key}.config").write_text(_CLIENT.format(folder=folder, key=key))
            command = folder / key.removesuffix("_key") / "ssh"
            command.parent.mkdir()
            command.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/{key}.config "$@"\n')
            command.chmod(0o755)
        return cls(folder)

    def serve(self, host: Host) -> None:
        """Run sshd on a host."""
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd does not start without it
        printed = self.folder / f"sshd_{host.name}.txt"
        sshd = shutil.which("sshd")
        assert sshd
        host.start(sshd, "-D", "-e", "-f", str(self.folder / "sshd_config"), output=printed)
        wait_for(lambda: "Server listening" in printed.read_text(), 20, lambda: f"for sshd: {printed.read_text()}")

    def path(self, key: str = "user") -> str:
        """PATH with an ssh that logs in with this key; sshd accepts "user" only."""
        return f"{self.folder / key}:{os.environ['PATH']}"
