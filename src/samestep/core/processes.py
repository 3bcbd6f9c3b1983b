"""What the system knows of a process of this host, by its number; empty where there is none, or no /proc."""

import os
from pathlib import Path


def start_time(pid: int) -> str:
    """When a process began, by the system's clock: with the pid, which may be used again, that identifies it."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def state(pid: int) -> str:
    """The state of a process: stopped, gone, or empty (running, or unknown)."""
    fields = _stat(pid)
    if not fields:
        return "gone" if Path("/proc/self").exists() else ""
    return {"T": "stopped", "t": "stopped", "Z": "gone", "X": "gone"}.get(fields[0], "")


def parent(pid: int) -> int:
    """The process that started a process, or took it over; 0 if not known."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def command(pid: int) -> list[str]:
    """The command line."""
    return _strings(pid, "cmdline")


def environment(pid: int) -> dict[str, str]:
    """The variables with which a process was started; of the user's own processes only."""
    pairs = (pair.partition("=") for pair in _strings(pid, "environ"))
    return {name: value for name, _, value in pairs if name}


def is_own(pid: int) -> bool:
    """Whether a process belongs to this user."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except OSError:
        return False


def _stat(pid: int) -> list[str]:
    """State, parent and so on: what follows the name in /proc/PID/stat."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _strings(pid: int, file: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
