"""What the system knows of a process of this host, by its number; empty where there is none, or no /proc."""

import os
from contextlib import suppress
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


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process has used; 0 if not known."""
    return _ticks(_stat(pid))


def thread_cpu_seconds(thread: int) -> float:
    """The CPU time that a thread of this process has used, by its number in the system; 0 if not known."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):  # a kernel that counts ticks only
        return _ticks(_stat(f"self/task/{thread}"))


def children(pid: int) -> list[int]:
    """The processes that a process has started and that are still there; none if not known."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError, ValueError):
            found += map(int, path.read_text().split())
    return found


def _stat(where: int | str) -> list[str]:
    """State, parent and so on: what follows the name in /proc/PID/stat."""
    try:
        return Path(f"/proc/{where}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _strings(pid: int, file: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _ticks(fields: list[str]) -> float:
    """Seconds in the program and in the system, of what `_stat` gives."""
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0
