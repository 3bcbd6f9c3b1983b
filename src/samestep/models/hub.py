"""Models by name: a folder on disk, or a model of the Hugging Face Hub, which is downloaded once for all ranks.

    folder = resolve_model("org/name@revision", bench.world)
    folder = resolve_model("org/name", bench.world, weights=False)      # its configuration and its tokenizer alone
    path = find_model(text, bench.world)                                # whatever is on the disk stays what it is

The cache is looked at first. A model that is complete there is used without a request, even if its branch has moved
since; name a commit, or delete it from the cache, to get another one.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from samestep.core.console import PlainConsole
from samestep.core.errors import RunFailed, UserError
from samestep.core.json_files import Json
from samestep.core.paths import expand_home
from samestep.models.hub_download import Download, HubModel, find_in_cache, hub_model, import_hub
from samestep.world.world import World

Progress = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes that are wanted."""
_SECONDS = 0.2
"""Between two messages of the ranks about how far they are."""


def resolve_model(
    name: str, world: World | None = None, progress: Progress | None = None, *, weights: bool = True
) -> Path:
    """The folder of the model that a user named: a local folder, or `org/name` or `org/name@revision` of the Hub.

    Collective, if a world is given: every rank gets the folder of the same files, or raises the same error. `progress`
    is called on rank 0; by default rank 0 shows a bar. Without `weights` none are downloaded.
    """
    world = world or World.single()
    found = world.run_on_all_ranks(f"finding {name}", lambda: _parse(name) if world.is_main else None)[0]
    if found is None:
        return _folder_on_all_hosts(expand_home(name), world)
    return _download(HubModel(*found), world, progress, weights)


def find_model(text: str, world: World | None = None) -> Path:
    """The path of what a user named: a model of the Hub is downloaded, anything else need not be there. Collective, if
    a world is given; rank 0 says which it is."""
    world = world or World.single()
    model = hub_model(text) if world.is_main else None
    found = world.share([model.name, model.revision] if model else None)
    return Path(text) if found is None else _download(HubModel(*found), world)


def _download(model: HubModel, world: World, progress: Progress | None = None, weights: bool = True) -> Path:
    """The folder of a model in the cache of every host."""
    with _bar(str(model), visible=world.is_main and progress is None) as bar:
        show = progress or bar
        results = _work_together(world, Download(model, weights=weights) if world.is_main else None, show)
        commit = results[0]
        hosts = world.gather(None if _find(model, commit, weights) else world.host)
        is_chosen = world.host in hosts and hosts.index(world.host) == world.rank  # this host's cache is not rank 0's
        _work_together(world, Download(model, commit, weights) if is_chosen else None, show)
    return _seen_on_all_ranks(model, commit, world, weights)


def _parse(name: str) -> Json:
    """Name and revision of a model of the Hub; None for a folder."""
    path = expand_home(name)
    if name and path.is_dir():
        return None
    if name and path.exists():
        raise UserError(f"Name the folder of a model, or a model of the Hub such as org/name; {name} is a file.")
    model = hub_model(name)
    if model is None:
        raise UserError(
            f"Name an existing folder, or a model of the Hub as org/name or org/name@revision; {name} is neither "
            f"(from {Path.cwd()})."
        )
    return [model.name, model.revision]


def _folder_on_all_hosts(folder: Path, world: World) -> Path:
    def check() -> None:
        if not folder.is_dir():
            raise UserError(f"Put the folder {folder} on a disk that all hosts see; {world.host} does not have it.")

    world.run_on_all_ranks(f"finding {folder}", check)
    return folder


def _find(model: HubModel, commit: str, weights: bool) -> Path | None:
    return find_in_cache(model.name, commit, needs_tokenizer=False, needs_weights=weights)


def _seen_on_all_ranks(model: HubModel, commit: str, world: World, weights: bool) -> Path:
    def find() -> str:
        folder = _find(model, commit, weights)
        if folder is None:
            raise UserError(
                f"Give all ranks of a host the same HF_HOME and HF_HUB_CACHE; {model} was downloaded on {world.host}, "
                f"but rank {world.rank} does not find it in {import_hub().constants.HF_HUB_CACHE}."
            )
        return str(folder)

    return Path(world.run_on_all_ranks(f"finding {model}", find)[world.rank])


class _Job:
    """A download in a thread that does not keep the process alive, and what the ranks tell each other about it."""

    def __init__(self, work: Download | None) -> None:
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


def _work_together(world: World, work: Download | None, progress: Progress) -> list[str]:
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
