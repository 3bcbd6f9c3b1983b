"""The secret that the processes of one launch share and nobody else knows; with it they recognise each other.

`samestep train --nproc` makes a new one for every launch and passes it to its ranks in their environment, which other
users cannot read. Where nothing of ours starts all processes (several nodes, srun, mpiexec, torchrun), the secret is
that of the user: SAMESTEP_SECRET, or a file in the configuration folder that only the user can read. It is made on
first use, and all nodes see it if they share the home directory. It never stands on a command line or in a job script.

No message is authenticated with the secret itself, but with a key that follows from it and from what the key is for,
such as the id of a job: `derive_key(secret, "store", "slurm 12.0.0")`.
"""

import errno
import hmac
import json
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from samestep.core import launch_env
from samestep.core.errors import UserError
from samestep.core.paths import settings_folder
from samestep.core.safe_files import open_new, temporary_name

_LEAST = 16
"""Characters of a secret that a user chose."""


def new_secret() -> str:
    return secrets.token_hex(32)


def find_secret(env: Mapping[str, str]) -> bytes:
    """The secret of this process: what its launcher or the user put into the environment, else the user's file."""
    given = env.get(launch_env.SECRET)
    if given is None:
        return _from_file(secret_file(env))
    if len(given) < _LEAST:
        raise UserError(
            f"{launch_env.SECRET} must have at least {_LEAST} characters, such as `openssl rand -hex 32` makes"
        )
    return os.fsencode(given)


def derive_key(secret: bytes, *purpose: str) -> bytes:
    """A key for one purpose; who knows it knows neither the secret nor the key for another purpose."""
    return hmac.digest(secret, json.dumps(purpose).encode(), "sha256")


def secret_file(env: Mapping[str, str]) -> Path | None:
    """Where the user's secret is kept; None where the user has no home."""
    folder = settings_folder(env)
    return folder / "secret" if folder else None


def _from_file(path: Path | None) -> bytes:
    try:
        if path is None:
            raise FileNotFoundError(errno.ENOENT, "no home directory")
        if not os.path.lexists(path):
            _make(path)
        return _read(path)
    except OSError as error:
        raise UserError(
            f"the ranks need a secret to recognise each other, and {path or '~/.config'} cannot be used "
            f"({error.strerror}): set {launch_env.SECRET} to the same random text on every node"
        ) from None


def _make(path: Path) -> None:
    """Make the file; of several processes that do so at once, the first one's stays."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = temporary_name(path)
    try:
        with open_new(temporary, private=True) as file:
            file.write(new_secret().encode())
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # fails if there is one
    except FileExistsError:
        return
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
            raise UserError(
                f"{path} must be a file that belongs to you and that nobody else can read: remove it, and it is made "
                "anew when it is needed"
            )
        secret = file.read(4096).strip()
    if len(secret) < _LEAST:
        raise UserError(f"{path} holds no secret: remove it, and it is made anew when it is needed")
    return secret
