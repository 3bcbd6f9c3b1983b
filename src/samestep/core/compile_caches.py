"""Where torch.compile and triton keep what they have compiled.

Both execute what they find there. Their own choice is a folder of /tmp, whose name anybody can guess and make first. So
it is a folder in the user's cache directory, and none that others can write to is used.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from samestep.core.errors import UserError
from samestep.core.paths import cache_folder
from samestep.core.safe_files import make_private_folder, others_may_write

TORCH, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"
HEADERS_OFF = "not in /tmp"
"""Anything but 1 turns precompiled headers off, which torch keeps in /tmp whatever its cache folder is. Where we
compile ourselves they are moved, and turned on again (parallel/compiling.py)."""


def use_private_caches(env: MutableMapping[str, str] = os.environ) -> None:
    """Choose the folders, before torch does. Those that the user has chosen stay, if nobody else can write to them."""
    for variable in (TORCH, TRITON):
        if env.get(variable):
            _use(Path(env[variable]), variable, f"{variable} names")
    if not env.get(TORCH):
        env[TORCH] = str(_default_folder(env))
    if not env.get(TRITON):
        env[TRITON] = os.path.join(env[TORCH], "triton")
    env.setdefault(HEADERS, HEADERS_OFF)


def _default_folder(env: MutableMapping[str, str]) -> Path:
    cache = cache_folder(env)
    if cache is not None:
        try:
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            _use(cache / "compile", TORCH, "compiled code is kept in")
        except OSError:  # a home that cannot be written
            cache = None
    return cache / "compile" if cache is not None else _temporary_folder()


def _temporary_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="samestep-compile-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _use(folder: Path, variable: str, what: str) -> None:
    """Make the folder, or refuse one that is there and not safe."""
    if not os.path.lexists(folder):
        make_private_folder(folder)
    if problem := others_may_write(folder):
        raise UserError(
            f"{what} {folder}, which {problem}, so that their code could run as you; set {variable} to a folder of "
            "your own that nobody else can write to"
        )
