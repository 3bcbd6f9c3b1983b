"""Files of the Hugging Face Hub on the disks of all hosts: each downloads them once, for all of its ranks."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from samestep.core.console import PlainConsole
from samestep.core.errors import RunFailed, UserError
from samestep.core.hub_download import HubDownload, import_hub
from samestep.core.json_files import Json
from samestep.world.world import World

Progress = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes that are wanted."""
_SECONDS = 0.2
"""Between two messages of the ranks about how far they are."""


def download_on_all_hosts(
    label: str, make: Callable[[str | None], HubDownload], world: World, progress: Progress | None = None
) -> Path:
    """The folder in the cache of every host. Collective; `make` makes the download of a commit, or of the revision that
    is wanted. `progress` is called on rank 0; by default rank 0 shows a bar."""
    with _bar(label, visible=world.is_main and progress is None) as bar:
        show = progress or bar
        commit = _work_together(world, make(None) if world.is_main else None, show)[0]
        hosts = world.gather(None if make(commit).find(downloaded=True) else world.host)
        is_chosen = world.host in hosts and hosts.index(world.host) == world.rank  # this host's cache is not rank 0's
        _work_together(world, make(commit) if is_chosen else None, show)
    return _seen_on_all_ranks(label, make(commit), world)


def _seen_on_all_ranks(label: str, wanted: HubDownload, world: World) -> Path:
    def find() -> str:
        folder = wanted.find(downloaded=True)
        if folder is None:
            raise UserError(
                f"Give all ranks of a host the same HF_HOME and HF_HUB_CACHE; {label} was downloaded on {world.host}, "
                f"but rank {world.rank} does not find it in {import_hub().constants.HF_HUB_CACHE}."
            )
        return str(folder)

    return Path(world.run_on_all_ranks(f"finding {label}", find)[world.rank])


class _Job:
    """A download in a thread that does not keep the process alive, and what the ranks tell each other about it."""

    def __init__(self, work: HubDownload | None) -> None:
        self.error: Exception | None = None
        self._work, self._result = work, ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work() if self._work else ""
        except Exception as error:
            self.error = error

    def state(self) -> dict[str, Json]:
        """Whether it is running, how far it is, its result or its error."""
        running = self._thread.is_alive()
        done, wanted = self._work.bytes() if self._work else (0, 0)
        error = self.error
        text = str(error) if isinstance(error, UserError | RunFailed) else f"{type(error).__name__}: {error}"
        return {
            "running": running,
            "bytes": [done, wanted],
            "result": self._result,
            "error": None if error is None else [isinstance(error, UserError), text],
        }

    def wait(self, seconds: float) -> None:
        """Until it is done, but not longer than `seconds`."""
        self._thread.join(seconds)


def _work_together(world: World, work: HubDownload | None, progress: Progress) -> list[str]:
    """What the ranks with work return, by rank.

    All ranks exchange how far they are several times a second. So a download may take hours; if it fails on one rank,
    all raise that error; and if no byte arrives any more, the watchdog notices.
    """
    job, before = _Job(work), None
    while True:
        states = world.gather(job.state())
        if job.error is not None and not isinstance(job.error, UserError | RunFailed):
            raise job.error  # a bug: its traceback is worth more than the same message on all ranks
        for is_user, text in (state["error"] for state in states if state["error"]):
            raise (UserError if is_user else RunFailed)(text)
        done, wanted = (sum(state["bytes"][part] for state in states) for part in (0, 1))
        if done != before:
            before = done
            world.activity.made_progress()
        if world.is_main and wanted:
            progress(done, wanted)
        if not any(state["running"] for state in states):
            return [state["result"] for state in states]
        job.wait(_SECONDS)


@contextmanager
def _bar(name: str, visible: bool) -> Iterator[Progress]:
    """A bar on a terminal, and one line elsewhere, as soon as there is something to download."""
    console = PlainConsole(sys.stderr, quiet=not visible, soft_wrap=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(24), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, TimeRemainingColumn(compact=True), console=console, transient=True, disable=not visible) as bar:
        task = bar.add_task(f"downloading {name}", total=None, visible=False)

        def show(done: int, wanted: int) -> None:
            if not bar.tasks[0].visible and not console.is_terminal:
                console.print(f"downloading {name} ({wanted / 1e6:,.0f} MB)")
            bar.update(task, completed=done, total=wanted, visible=True)

        yield show
