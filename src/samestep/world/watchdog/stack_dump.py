"""What a rank is doing, read from its watchdog thread: stacks, collectives and memory; and faulthandler's dumps."""

import faulthandler
import json
import os
import re
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed.distributed_c10d as c10d

from samestep.core import processes
from samestep.core.json_files import Json
from samestep.core.safe_files import open_file, write_text
from samestep.world.activity import ActivityTracker, ThreadActivity
from samestep.world.source_lines import SAMESTEP, StackFrame, is_library, relevant_line, stacks_of_threads

_DISTRIBUTED = os.path.join("torch", "distributed", "")
_WATCHDOG = str(Path(__file__).parent)
_COMPILING_FILES = tuple(
    os.path.join(*parts) for parts in (("torch", "_dynamo", "convert_frame.py"), ("triton", "compiler", "compiler.py"))
)
_STORE = os.path.join(SAMESTEP, "world", "authenticated_store.py")
_RANK = os.path.join(SAMESTEP, "world", "rank.py")
_THREAD = re.compile(r"hread 0x(?P<id>[0-9a-f]+) ")
_FRAME = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')


def thread_report(
    tracker: ActivityTracker, activity: ThreadActivity, seconds: float, limit: float, unusual: float | None, rank: int
) -> dict[str, Json]:
    """What one thread of this rank is doing, as plain data. The keys are those of the files in `watch/`."""
    stack = stack_of(activity.thread)
    is_late = seconds > (unusual or limit)
    return {
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": processes.start_time(os.getpid()),
        "thread": activity.thread,
        "time": time.time(),
        "stage": tracker.stage,
        "step": tracker.step,
        "lane": activity.name,
        "activity": activity.activity,
        "seconds": round(seconds, 1),
        "limit": limit,
        "unusual": unusual,
        "where": relevant_line(stack),
        "waits": is_waiting(stack),
        "collectives": collective_counts(),
        "recent": recent_collectives() if is_late else [],
        "updates": tracker.updates.total,
        "history": tracker.updates.to_json() if is_late else [],
        **memory_use(),
    }


def is_compiling() -> bool:
    """Whether a thread of this process compiles something: also in the middle of a run, as for a new shape."""
    return any(
        file.endswith(_COMPILING_FILES) or function == "compile_fx_inner"
        for stack in stacks_of_threads().values()
        for file, _, function in stack
    )


def collective_counts() -> dict[str, int]:
    """How many collectives this rank has begun, by group, in the order in which groups were made."""
    counts = {}
    for group, number in list(c10d._world.pg_names.items()):
        with suppress(RuntimeError):  # a backend that does not count
            counts[_group_name(group.group_desc, number)] = group._get_sequence_number_for_group()  # type: ignore[attr-defined]
    return counts


def recent_collectives(most: int = 80) -> list[tuple[str, int, str]]:
    """The last collectives that this rank began, the latest last, where torch's flight recorder has them."""
    found = []
    for row in json.loads(_flight_recorder_json() or "{}").get("entries", [])[-most:]:
        number, described = row["process_group"]
        group, what = _group_name(described, number), row["profiling_name"].rpartition(":")[2]
        shapes = ", ".join("x".join(map(str, shape)) or "one number" for shape in row["input_sizes"])
        found.append((group, row["collective_seq_id"], f"{what} of {shapes} in group {group}"))
    return found


def _group_name(described: str, number: str) -> str:
    return {"default_pg": "default", "undefined": number}.get(described, described or number)


def stack_of(thread: int) -> list[StackFrame]:
    """The stack of a thread, the innermost frame first, without frames of the watchdog and of the store."""
    return [each for each in stacks_of_threads().get(thread, ()) if not each[0].startswith((_WATCHDOG, _STORE))]


def stack_from_dump(text: str, thread: int) -> list[StackFrame]:
    """The same from what faulthandler wrote; the last dump of the thread counts."""
    stack: list[StackFrame] = []
    in_thread = False
    for line in text.splitlines():
        if header := _THREAD.search(line):
            in_thread = int(header["id"], 16) == thread
            stack = [] if in_thread else stack
        elif in_thread and (match := _FRAME.match(line)):
            stack.append((match["file"], int(match["line"]), match["name"]))
    return [each for each in stack if not each[0].startswith(_STORE)]


def is_waiting(stack: list[StackFrame]) -> bool:
    """Whether a thread is where ranks wait for each other: in a collective, or in `World.together`."""
    inner = stack[: next((n for n, frame in enumerate(stack) if not is_library(frame[0])), None)]
    return any(_DISTRIBUTED in file for file, _, _ in inner) or (bool(stack) and stack[0][0] == _RANK)


def is_debugged(thread: int) -> bool:
    """Whether a thread is in a debugger: then nothing hangs."""
    return any(os.path.basename(file) in ("bdb.py", "pdb.py") for file, _, _ in stacks_of_threads().get(thread, ()))


def memory_use() -> dict[str, int]:
    """Bytes that this rank holds, and that the host has left; empty on systems without /proc."""
    held = process_memory()
    return {"memory": held, "free": host_memory()[1]} if held else {}


def process_memory() -> int:
    """Bytes of memory that this process holds; 0 on systems without /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def host_memory() -> tuple[int, int]:
    """Bytes that the host has, and that programs can still get; 0 on systems without /proc."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, available = (1024 * int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return 0, 0
    return total, available


def dump_collectives(path: Path) -> None:
    """The last collectives of this rank, where torch's flight recorder has them."""
    if text := _flight_recorder_json():
        write_text(path, text)


def _flight_recorder_json() -> str:
    """Which function of torch returns it depends on how torch was built."""
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(torch._C._distributed_c10d, name, None)
        with suppress(RuntimeError):
            text = dump() if dump else b""
            if b'"entries"' in text:
                return str(text, "utf-8")
    return ""


class StackDumpFile:
    """The file with faulthandler's stack dumps of a rank: of a crash, and of native code that holds its interpreter."""

    def __init__(self, path: Path, *, alone: bool) -> None:
        """`alone`: there is no other rank that could print the stacks or end this process."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open_file(path, "a", encoding="utf-8")
        self._alone = alone
        self._dumps_crashes = not faulthandler.is_enabled()  # otherwise someone else enabled it already
        if self._dumps_crashes:
            faulthandler.enable(self._file)

    def dump_later(self, seconds: float) -> None:
        """Write the stacks after so many seconds unless called again; the timer does not need the interpreter."""
        target = sys.__stderr__ if self._alone and sys.__stderr__ is not None else self._file
        faulthandler.dump_traceback_later(seconds, exit=self._alone, file=target)

    def dump(self) -> None:
        """Write the stacks now."""
        faulthandler.dump_traceback(self._file, all_threads=True)

    def exit_after(self, seconds: float) -> None:
        """End the process after so many seconds, whatever it hangs in."""
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._file)

    def close(self) -> None:
        """Stop the timer and close the file."""
        faulthandler.cancel_dump_traceback_later()
        if self._dumps_crashes:
            faulthandler.disable()
        self._file.close()
