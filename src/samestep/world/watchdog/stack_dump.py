"""What a rank is doing, seen from its watchdog thread: stacks, collectives and memory; or as faulthandler dumps it."""

import faulthandler
import json
import os
import re
import socket
import sys
import sysconfig
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

import torch
import torch.distributed.distributed_c10d as c10d

from samestep.core.records import Json
from samestep.world.watchdog.activity import Lane, Watch

_OURS = str(Path(__file__).parents[2])
_LIBRARY = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")})
_DISTRIBUTED = os.path.join("torch", "distributed", "")
_WATCHERS = str(Path(__file__).parent)
_MEETING = os.path.join(_OURS, "world", "world.py")
Place = tuple[str, int, str]
"""File, line and function."""
_THREAD = re.compile(r"hread 0x(?P<id>[0-9a-f]+) ")
_FRAME = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')


def report(watch: Watch, lane: Lane, seconds: float, limit: float, rank: int) -> dict[str, Json]:
    """What one thread of this rank is doing, in a form that travels."""
    places = places_of(sys._current_frames().get(lane.thread))
    return {
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": born(os.getpid()),
        "thread": lane.thread,
        "time": time.time(),
        "stage": watch.stage,
        "step": watch.step,
        "lane": lane.name,
        "activity": lane.activity,
        "seconds": round(seconds, 1),
        "limit": limit,
        "where": relevant(places),
        "waits": waits(places),
        "collectives": collectives(),
        "recent": recent() if seconds > limit else [],
        **memory(),
    }


def collectives() -> dict[str, int]:
    """How many collectives this rank has begun, by group, in the order in which groups were made."""
    counts = {}
    for group, number in list(c10d._world.pg_names.items()):
        with suppress(RuntimeError):  # a backend that does not count
            counts[_name(group.group_desc, number)] = group._get_sequence_number_for_group()  # type: ignore[attr-defined]
    return counts


def recent(most: int = 80) -> list[tuple[str, int, str]]:
    """The last collectives that this rank began, the latest last, where torch's flight recorder has them."""
    found = []
    for row in json.loads(_recorded() or "{}").get("entries", [])[-most:]:
        number, described = row["process_group"]
        group, what = _name(described, number), row["profiling_name"].rpartition(":")[2]
        shapes = ", ".join("x".join(map(str, shape)) or "one number" for shape in row["input_sizes"])
        found.append((group, row["collective_seq_id"], f"{what} of {shapes} in group {group}"))
    return found


def _name(described: str, number: str) -> str:
    return {"default_pg": "default", "undefined": number}.get(described, described or number)


def places_of(frame: FrameType | None) -> list[Place]:
    """The stack that ends with a frame, the innermost first; whoever looks is not in it."""
    places = []
    while frame is not None:
        places.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return [place for place in places if not place[0].startswith(_WATCHERS)]


def dumped_places(text: str, thread: int) -> list[Place]:
    """The same out of what faulthandler wrote, the last time that the thread is in it."""
    places: list[Place] = []
    is_its = False
    for line in text.splitlines():
        if header := _THREAD.search(line):
            is_its = int(header["id"], 16) == thread
            places = [] if is_its else places
        elif is_its and (match := _FRAME.match(line)):
            places.append((match["file"], int(match["line"]), match["name"]))
    return places


def waits(places: list[Place]) -> bool:
    """Whether a thread is where ranks wait for each other, be it for a collective or at a meeting."""
    inner = places[: next((n for n, place in enumerate(places) if not place[0].startswith(_LIBRARY)), None)]
    return any(_DISTRIBUTED in file for file, _, _ in inner) or (bool(places) and places[0][0] == _MEETING)


def relevant(places: list[Place]) -> str:
    """The source line that a user would look for: the innermost that is no library's, else the innermost of all."""
    known = [place for place in places if not place[0].startswith("<")]
    users = [place for place in known if not place[0].startswith((_OURS, *_LIBRARY))]
    ours = [place for place in known if place[0].startswith(_OURS)]
    chosen = next(iter([*_before_ours(known), *ours, *users, *known]), None)
    return f"{_short(chosen[0])}:{chosen[1]} in {chosen[2]}" if chosen else ""


def _short(file: str) -> str:
    """As a user knows it: below the package, or below the working directory."""
    for root in (str(Path(_OURS).parent), os.getcwd()):
        if file.startswith(root + os.sep):
            return os.path.relpath(file, root)
    return file


def _before_ours(places: list[Place]) -> list[Place]:
    """Those of the user's own code that samestep called: a script that called samestep is not where anything hangs."""
    inner = []
    for place in places:
        if place[0].startswith(_OURS):
            break
        if not place[0].startswith(_LIBRARY):
            inner.append(place)
    return inner


def debugged(thread: int) -> bool:
    """Whether somebody sits in a debugger there: then nothing hangs."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_globals.get("__name__") in ("bdb", "pdb"):
            return True
        frame = frame.f_back
    return False


def memory() -> dict[str, int]:
    """Bytes that this rank holds, and that the host has left; empty where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return {}
    return {"memory": pages * os.sysconf("SC_PAGE_SIZE"), "free": host_memory()[1]}


def host_memory() -> tuple[int, int]:
    """Bytes that the host has, and that programs can still get; 0 where nobody tells."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, available = (1024 * int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return 0, 0
    return total, available


def state_of(pid: int) -> str:
    """What became of a process of this host that is not heard: stopped, gone, or empty for nothing to be seen."""
    letter, _ = _process(pid)
    if not letter:
        return "gone" if Path("/proc/self").exists() else ""
    return {"T": "stopped", "t": "stopped", "Z": "gone", "X": "gone"}.get(letter, "")


def born(pid: int) -> str:
    """When a process began, by the system's clock: with its number, that is a name which is never used again."""
    return _process(pid)[1]


def _process(pid: int) -> tuple[str, str]:
    """State and begin; empty where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]


def dump_collectives(path: Path) -> None:
    """The last collectives of this rank, where torch's flight recorder has them."""
    if text := _recorded():
        path.write_text(text, encoding="utf-8")


def _recorded() -> str:
    """Which function gives them depends on how torch was built."""
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(torch._C._distributed_c10d, name, None)
        with suppress(RuntimeError):
            text = dump() if dump else b""
            if b'"entries"' in text:
                return str(text, "utf-8")
    return ""


class BlackBox:
    """The file that takes the stacks of a rank: when it crashes in native code, and when its interpreter is held."""

    def __init__(self, path: Path, *, alone: bool) -> None:
        """`alone`: there is no other rank to tell the user, nor to end this process."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (open as long as the box)
        self._alone = alone
        self._crashes = not faulthandler.is_enabled()  # or somebody else takes those already
        if self._crashes:
            faulthandler.enable(self._file)

    def arm(self, seconds: float) -> None:
        """Unless armed again within so many seconds, the stacks are written: by a timer that needs no interpreter."""
        shown = sys.__stderr__ if self._alone and sys.__stderr__ is not None else self._file
        faulthandler.dump_traceback_later(seconds, exit=self._alone, file=shown)

    def dump(self) -> None:
        """Write the stacks now."""
        faulthandler.dump_traceback(self._file, all_threads=True)

    def end_within(self, seconds: float) -> None:
        """End the process then, whatever it hangs in."""
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._file)

    def close(self) -> None:
        """Nothing is watched any more."""
        faulthandler.cancel_dump_traceback_later()
        if self._crashes:
            faulthandler.disable()
        self._file.close()
